"""Weights and data are pure functions of seed and position: no rank, shard or device enters them."""

import torch

from shardtune.workers.rank.model import data, weights

CPU = torch.device("cpu")


def filled(start: int, count: int, *, name: str = "a.weight", seed: int = 3, chunk_of: int = 1000) -> torch.Tensor:
    out = torch.empty(count)
    weights.fill_(out, name, torch.Size((chunk_of, 1000)), start, seed, torch.float32)
    return out


def test_a_shard_is_its_range_of_the_whole() -> None:
    full_filled = filled(0, 200_000)
    assert torch.equal(filled(70_001, 99_999), full_filled[70_001:170_000])


def test_weights_depend_on_seed_and_name() -> None:
    assert not torch.equal(filled(0, 100), filled(0, 100, seed=4))
    assert not torch.equal(filled(0, 100), filled(0, 100, name="b.weight"))


def test_weights_have_the_stated_spread() -> None:
    values = filled(0, 1_000_000)
    assert abs(float(values.mean())) < 1e-4
    assert abs(float(values.std()) - 0.02) < 1e-4


def test_vectors_are_norms_or_biases() -> None:
    out = torch.empty(8)
    weights.fill_(out, "norm.weight", torch.Size((8,)), 0, 0, torch.float32)
    assert out.tolist() == [1.0] * 8
    weights.fill_(out, "norm.bias", torch.Size((8,)), 0, 0, torch.float32)
    assert out.tolist() == [0.0] * 8


def test_masters_can_start_representable_in_the_compute_dtype() -> None:
    out = torch.empty(1000)
    weights.fill_(out, "a.weight", torch.Size((10, 100)), 0, 0, torch.bfloat16)
    assert torch.equal(out, out.to(torch.bfloat16).float())


def test_values_are_the_same_on_every_machine() -> None:
    assert weights.key_of("weights", 0, "a") == weights.key_of("weights", 0, "a")
    # splitmix64 of state 0, as published with the algorithm.
    first = weights.hash_range(0, 1, 1, CPU)
    assert int(first[0]) & (2**64 - 1) == 0xE220A8397B1DCDAF


def test_samples_do_not_depend_on_who_asks() -> None:
    samples = data.samples(1, 5, range(8), 64, 512, CPU)
    assert torch.equal(data.samples(1, 5, range(3, 5), 64, 512, CPU), samples[3:5])
    assert not torch.equal(samples, data.samples(1, 6, range(8), 64, 512, CPU))


def test_every_sample_is_taken_once_whatever_the_split() -> None:
    for ranks, micro_batch, accumulation in ((2, 1, 6), (4, 3, 1), (1, 4, 3)):
        taken = [
            index
            for rank in range(ranks)
            for micro in range(accumulation)
            for index in data.micro_batch_indices(rank, micro_batch, accumulation, micro)
        ]
        assert sorted(taken) == list(range(12))


def test_the_next_token_mostly_follows_from_the_last() -> None:
    tokens = data.samples(0, 0, range(50), 200, 512, CPU)
    followers = torch.zeros(512, 512)
    followers.index_put_((tokens[:, :-1].flatten(), tokens[:, 1:].flatten()), torch.ones(50 * 199), accumulate=True)
    assert followers.max(dim=1).values.sum() / followers.sum() > 0.5

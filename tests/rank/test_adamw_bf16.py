"""AdamW with stochastic rounding trains the same on every backend, keeps bfloat16 states, and rounds replicas alike.

Each backend against one process that steps by torchao's arithmetic (`single_param_adam`), with other random numbers. Every
backend with SHARDTUNE_TEST_LONG=1.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from shardtune.api_schemas.studies.recipes import LossVerdict
from shardtune.api_schemas.training.optimizers import AdamWBf16
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.tuner.verdict import loss_difference, parity
from shardtune.workers.rank.strategies.optimizers import make
from shardtune.workers.rank.strategies.optimizers.adamw_bf16 import StochasticAdamW, round_by_chance_
from shardtune.workers.rank.strategies.state_dtypes import kept_dtypes
from tests.rank.helpers import replica_ranks
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import WIDE, wide
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

pytestmark = pytest.mark.ranks

STOCHASTIC: dict[str, Any] = {
    "precision": "bf16-true",
    "optimizer": {"kind": "adamw-bf16", "lr": 1.25e-3},
    "model": LLAMA | {"num_hidden_layers": 2},
    "parity_steps": 6,
}
MODEL = STOCHASTIC["model"]
BROAD = MODEL | {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 2048}
"""States beside which the activations are small."""
BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
DDP: dict[str, Any] = {"kind": "ddp"}
FSDP1: dict[str, Any] = {"kind": "fsdp1", "dp_shard": 2}
FSDP2: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 2}
ONE_SHARD = FSDP2 | {"dp_shard": 1}
ZERO_1, ZERO_2, ZERO_3 = ({"kind": "zero", "stage": stage} | BUCKETS for stage in (1, 2, 3))
BACKENDS = {"ddp": DDP, "fsdp1": FSDP1, "fsdp2": FSDP2, "zero-1": ZERO_1, "zero-2": ZERO_2, "zero-3": ZERO_3}


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        pytest.param(DDP, {"max_grad_norm": 0.1}, id="ddp, clipping that bites"),
        pytest.param(FSDP1, {}, id="fsdp1"),
        pytest.param(FSDP2, {"micro_batch": 2}, id="fsdp2"),
        wide(ZERO_2, {}, id="zero-2"),
        pytest.param(ZERO_3, {"activation_checkpointing": "full"}, id="zero-3, checkpointing"),
        wide(DDP, {}, id="ddp"),
        wide(FSDP1 | {"use_orig_params": True}, {}, id="fsdp1, original parameters"),
        wide(ZERO_1, {}, id="zero-1"),
        wide(ONE_SHARD | {"tensor_parallel": 2}, {}, id="tensor parallel"),
        wide(ONE_SHARD | {"pipeline_parallel": 2}, {}, id="pipeline"),
        wide(FSDP2, {"context_parallel": 2}, id="context parallel"),
        wide(FSDP2 | {"expert_parallel": 2}, {"model": MIXTRAL}, id="expert parallel"),
        wide(DDP, {"adapter": {"kind": "lora", "rank": 16}}, id="lora"),
    ],
)
def test_every_backend_trains_the_same(host: HostProcess, strategy: dict[str, Any], changes: dict[str, Any]) -> None:
    """By the bounds with which a study's verdict compares trials; a trial also compares the dtype of its states."""
    task = tiny_task(strategy, **(STOCHASTIC | changes))
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    bounds = parity.tolerance(task.workload.precision, task.workload.optimizer)
    reference = train(task)
    for expected, actual in zip(reference, report.trajectory, strict=True):
        assert parity.step_difference(expected, actual, bounds, "one process") is None


@pytest.mark.parametrize("name", ["ddp", "fsdp2, hybrid", wide("fsdp1, hybrid")])
def test_replicas_stay_equal_bit_by_bit(tmp_path: Path, name: str) -> None:
    report = compared_replicas(tmp_path, name)
    assert report.status == "complete", report.failure


@pytest.mark.parametrize("name", ["ddp", wide("fsdp2, hybrid"), wide("fsdp1, hybrid")])
def test_random_numbers_of_their_own_drive_replicas_apart(tmp_path: Path, name: str) -> None:
    report = compared_replicas(tmp_path, name, own_numbers=True)
    assert report.failure is not None and "weights differ between replicas" in report.failure.message


def compared_replicas(folder: Path, name: str, *, own_numbers: bool = False) -> RankReport:
    """Report of rank 0 of a trial of three steps whose ranks compare their replicas."""
    strategy = {
        "ddp": DDP,
        "fsdp1, hybrid": FSDP1 | {"dp_replicate": 2, "sharding_strategy": "HYBRID_SHARD"},
        "fsdp2, hybrid": FSDP2 | {"dp_replicate": 2},
    }
    task = tiny_task(strategy[name], ranks=replica_ranks.RANKS[name], **(STOCHASTIC | {"parity_steps": 3}))
    (folder / "task.json").write_text(task.model_dump_json())
    replica_ranks.run_ranks(name, folder, own_numbers=own_numbers)
    return RankReport.model_validate_json((folder / "rank_0.json").read_text())


@WIDE
def test_it_trains_as_well_as_fp32_where_nearest_rounding_loses_the_updates(host: HostProcess) -> None:
    losses = []
    for changes in (
        {"precision": "fp32", "optimizer": {"lr": 2e-5}},
        {"optimizer": {"kind": "adamw-bf16", "lr": 2e-5}},
    ):
        task = tiny_task(DDP, **(STOCHASTIC | {"parity_steps": 2, "micro_batch": 4} | changes))
        report = host.run(task.model_copy(update={"plan": task.plan.model_copy(update={"loss_steps": 200})}))[0]
        assert report.status == "complete", report.failure
        losses.append(report.losses[:200])
    assert loss_difference.compare(losses[1], losses[0], 0.02).verdict is LossVerdict.AS_WELL


def test_ties_between_pipeline_stages_are_rejected(host: HostProcess) -> None:
    report = host.run(tiny_task(ONE_SHARD | {"pipeline_parallel": 2}, **(STOCHASTIC | {"model": GPT2})))[0]
    assert report.failure is not None and report.failure.kind is FailureKind.ILLEGAL
    assert "pipeline_parallel (2) holds tied weights twice" in report.failure.message


def test_an_offloaded_step_is_rejected_before_it_trains(host: HostProcess) -> None:
    task = tiny_task(ZERO_2 | {"offload_optimizer": {"pin_memory": False}}, **STOCHASTIC)
    report = host.run(task)[0]
    assert report.failure is not None and report.failure.kind is FailureKind.ILLEGAL
    assert "strategy.offload_optimizer cannot train with AdamW with stochastic rounding" in report.failure.message


@pytest.mark.parametrize("name", ["ddp", "fsdp2", *(wide(name) for name in ("fsdp1", "zero-1", "zero-2", "zero-3"))])
def test_predicted_memory_is_within_a_tenth(host: HostProcess, name: str) -> None:
    task = tiny_task(BACKENDS[name], **(STOCHASTIC | {"model": BROAD, "parity_steps": 2}))
    report = host.run(task)[0]
    assert report.memory is not None and report.memory.peak_allocated_gib is not None, report.failure
    assert predicted_gib(task, BROAD) == pytest.approx(report.memory.peak_allocated_gib, rel=0.1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rounding_keeps_the_mean_and_goes_to_a_neighbour_alone() -> None:
    values = torch.tensor([1.001, -1.001, 3e-5, -7.77, 1e-40, 0.0]).repeat_interleave(200_000)
    target = torch.empty_like(values, dtype=torch.bfloat16)
    round_by_chance_(target, values.clone(), generator(1))
    for value, rounded in zip(values.view(6, -1), target.view(6, -1), strict=True):
        below = value[0].view(torch.int32).bitwise_and(-(1 << 16)).view(torch.float32)
        above = (below.view(torch.int32) + (1 << 16)).view(torch.float32)
        assert {*rounded.float().tolist()} <= {below.item(), above.item()}
        spread = abs((above - below).item()) / 2 / 200_000**0.5
        assert rounded.double().mean().item() == pytest.approx(value[0].item(), abs=6 * spread)


def test_what_bfloat16_has_and_what_is_no_number_stay() -> None:
    gpus_nan = torch.tensor([0x7FFFFFFF, 0x7FC00000, 0x7F800000, -0x800000], dtype=torch.int32).view(torch.float32)
    values = torch.cat([gpus_nan, torch.tensor([0.0, -0.0, 1.0, -2.5, 2.0**-130])]).repeat(1000)
    target = torch.empty_like(values, dtype=torch.bfloat16)
    round_by_chance_(target, values.clone(), generator(2))
    assert torch.equal(target.isnan(), values.isnan())
    assert torch.equal(target.nan_to_num(), values.bfloat16().nan_to_num())


def stepped(beta2: float, steps: int, shard: int = 0, kind: str = "adamw-bf16") -> torch.optim.Optimizer:
    """Optimizer that was given large gradients in its first steps and small ones later."""
    weight = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    if kind == "adamw-bf16":
        optimizer = make(AdamWBf16(lr=1e-4, beta2=beta2, weight_decay=0.0), [weight], shard=shard).members[0]
    else:
        optimizer = torch.optim.AdamW([weight], lr=1e-4, betas=(0.9, beta2), weight_decay=0.0, fused=True)
    for step in range(steps):
        weight.grad = torch.full_like(weight, 1.0 if step < 20 else 1e-3)
        optimizer.step()
    return optimizer


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    (state,) = optimizer.state.values()
    return state


def weight_of(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    weight: torch.Tensor = optimizer.param_groups[0]["params"][0]
    return weight.detach()


def test_states_are_in_bfloat16_and_take_four_bytes_of_a_parameter() -> None:
    optimizer = stepped(0.95, 1)
    assert kept_dtypes(optimizer) == {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
    held = sum(value.nbytes for value in state_of(optimizer).values() if value.numel() > 1)
    assert held == AdamWBf16().state_bytes(64 * 64, 0, 2.0) == 4 * 64 * 64


def test_updates_below_half_of_a_last_digit_are_kept_on_average() -> None:
    """A step of 1e-4 on a weight of 1: nearest rounding loses every one of them."""
    lost, kept = (weight_of(stepped(0.95, 20, kind=kind)).double().mean().item() for kind in ("adamw", "adamw-bf16"))
    assert lost == 1.0 and kept == pytest.approx(1.0 - 20 * 1e-4, abs=2e-4)


def test_a_second_moment_falls_at_a_usual_beta2() -> None:
    """A factor of 0.999 is below half of the last digit: rounded to nearest, the moment never falls."""
    fallen, stuck = (
        [state_of(stepped(0.999, steps, kind=kind))["exp_avg_sq"].double().mean().item() for steps in (20, 320)]
        for kind in ("adamw-bf16", "adamw")
    )
    assert fallen[1] / fallen[0] == pytest.approx(0.999**300, rel=0.02) and stuck[1] == stuck[0]


def test_numbers_depend_on_step_parameter_and_shard_alone() -> None:
    torch.manual_seed(1)
    first = weight_of(stepped(0.95, 3))
    torch.manual_seed(2)
    assert torch.equal(weight_of(stepped(0.95, 3)), first)
    assert not torch.equal(weight_of(stepped(0.95, 3, shard=1)), first)


def test_a_loaded_state_goes_on_with_the_same_numbers() -> None:
    whole, part = stepped(0.95, 5), stepped(0.95, 3)
    weight = torch.nn.Parameter(weight_of(part).clone())
    resumed = StochasticAdamW([weight], lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    resumed.load_state_dict(copy.deepcopy(part.state_dict()))
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        resumed.step()
    assert torch.equal(weight.detach(), weight_of(whole))


def test_weights_in_columns_are_updated_as_those_in_rows() -> None:
    """Own code may keep a parameter in another order of memory."""
    rows = torch.nn.Parameter(torch.ones(300, 500, dtype=torch.bfloat16))
    columns = torch.nn.Parameter(torch.ones(500, 300, dtype=torch.bfloat16).t())
    for weight in (rows, columns):
        weight.grad = torch.ones_like(weight)
        make(AdamWBf16(lr=1e-2), [weight]).step()
    assert columns.double().mean().item() == pytest.approx(rows.double().mean().item(), abs=1e-4)
    assert rows.double().mean().item() == pytest.approx(0.989, abs=1e-4)


def test_a_rank_without_rows_of_a_parameter_has_nothing_to_update() -> None:
    weight = torch.nn.Parameter(torch.ones(0, 8, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    make(AdamWBf16(), [weight]).step()


def test_weights_in_another_dtype_are_rejected() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    with pytest.raises(ValueError, match=r"'adamw-bf16'\) rounds bfloat16 weights, and a weight is in torch.float32"):
        make(AdamWBf16(), [weight]).step()

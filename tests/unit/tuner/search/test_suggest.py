from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.search.seeds import seed_configs
from shardtune.tuner.search.suggest import next_config
from tests.support.values.tuner_inputs import (
    complete,
    cpu,
    gate_of,
    gpus,
    infeasible,
    llama,
    open_gate,
    search,
    space_of,
    tiny_space,
)

WORKLOAD = Workload(sequence_length=128, global_batch=16)


def by_micro_batch(config: TrialConfig) -> float:
    return 100.0 * config.micro_batch + (10 if config.backend == "ddp" else 0)


def test_the_same_arguments_give_the_same_suggestion():
    space = space_of(cpu())
    history = search(space, by_micro_batch, 14)
    first = next_config(space, (), history, (), open_gate, 7)
    assert first == next_config(space, (), list(history), (), open_gate, 7)
    assert len({next_config(space, (), history, (), open_gate, seed).config for seed in range(6)}) > 1


def test_a_small_space_is_exhausted_without_a_repeat():
    space, seed = tiny_space(), 7
    size = space.size()
    history = search(space, lambda config: None if config.micro_batch == 2 else by_micro_batch(config), size + 5, seed)
    assert len(history) == size
    assert len({space.key(obs.config) for obs in history}) == size
    assert next_config(space, (), history, (), open_gate, seed).config is None


def test_every_suggestion_is_in_the_space():
    space = space_of(gpus(1, 4))
    assert all(space.contains(obs.config) for obs in search(space, by_micro_batch, 25, seed=3))


def test_seeds_come_first_and_in_order():
    space = space_of(cpu())
    seeds = seed_configs(space, cpu(), None)
    history = search(space, by_micro_batch, 6, seeds=tuple(seeds))
    assert [obs.config for obs in history[:4]] == [config for config, _ in seeds]
    assert [config.describe() for config, _ in seeds] == [
        "DDP, micro batch 1",
        "ZeRO-2, micro batch 1",
        "ZeRO-3, micro batch 1",
        "FSDP2, sharded ×2, micro batch 1",
    ]


def test_the_baseline_counts_as_a_seed_and_runs_as_it_is():
    baseline = TrialConfig(strategy=ZeroConfig(stage=1, reduce_bucket_size=777), micro_batch=2)
    seeds = seed_configs(space_of(cpu()), cpu(), baseline)
    assert seeds[0] == (baseline, "baseline")
    assert [config.backend for config, _ in seeds] == ["zero", "ddp", "zero", "fsdp2"]


def test_seeds_keep_to_the_users_limits():
    limits = SpaceLimits.model_validate({"knobs": {"micro_batch": 4, "stage": 3, "activation_checkpointing": "full"}})
    seeds = seed_configs(space_of(cpu(), limits), cpu(), None)
    assert [config.backend for config, _ in seeds] == ["ddp", "zero", "fsdp2", "fsdp1"]
    assert all(config.micro_batch == 4 and config.activation_checkpointing == "full" for config, _ in seeds)


def test_running_configurations_are_not_suggested_again():
    space = space_of(cpu())
    history = search(space, by_micro_batch, 12)
    for number in range(12, 20):
        config = next_config(space, (), history, (), open_gate, 0).config
        assert config is not None
        assert space.key(config) not in {space.key(obs.config) for obs in history}
        history.append(Observation(number, config, "sampler", TrialState.RUNNING))


def test_a_failed_configuration_is_not_suggested_again():
    space = tiny_space()
    everything = list(space.enumerate())
    failure = Failure(kind=FailureKind.CRASH, message="boom")
    history = [Observation(0, everything[0], "sampler", TrialState.FAILED, failure=failure)]
    history += [complete(i, config) for i, config in enumerate(everything[1:], start=1)]
    assert next_config(space, (), history, (), open_gate, 0).config is None


def test_an_out_of_memory_region_is_left_after_it_is_told():
    """Large micro batches do not fit; the faster they would be, the worse: TPE must not chase them."""
    space = space_of(gpus(1, 2), SpaceLimits(backends=("ddp",)), Workload(sequence_length=64, global_batch=64))
    late = search(space, lambda c: None if c.micro_batch >= 8 else by_micro_batch(c), 40)[20:]
    # Half of the six micro batches are out of bounds, so chance would be about 10.
    assert sum(obs.state is TrialState.INFEASIBLE for obs in late) <= 5


def test_what_crashed_twice_is_told_as_infeasible_and_a_lost_worker_s_trial_is_not():
    """A trial fails with a crash when that came again in its repetition."""
    space = space_of(gpus(1, 2), SpaceLimits(backends=("ddp",)), Workload(sequence_length=64, global_batch=64))
    history = search(space, by_micro_batch, 12)
    config = next_config(space, (), history, (), open_gate, 0).config
    assert config is not None

    def suggested(state, kind):
        observation = Observation(12, config, "sampler", state, failure=Failure(kind=kind, message="boom"))
        return [next_config(space, (), [*history, observation], (), open_gate, seed).config for seed in range(6)]

    crashed = suggested(TrialState.FAILED, FailureKind.CRASH)
    assert crashed == suggested(TrialState.INFEASIBLE, FailureKind.NUMERICS)
    assert crashed != suggested(TrialState.FAILED, FailureKind.WORKER_LOST)


def test_gate_rejections_are_returned_once_and_never_suggested():
    space = space_of(cpu(memory_gib=0.07))
    gate = gate_of(space)
    rejected: set[str] = set()
    history: list[Observation] = []
    for number in range(15):
        suggestion = next_config(space, (), history, rejected, gate, 0)
        keys = [rejection.config.content_key() for rejection in suggestion.rejections]
        assert not rejected & set(keys) and len(set(keys)) == len(keys)
        rejected |= set(keys)
        assert suggestion.config is not None and gate(suggestion.config) is None
        history.append(complete(number, suggestion.config, by_micro_batch(suggestion.config)))
    assert rejected


def test_a_large_space_in_which_nothing_fits_is_exhausted_at_once():
    workload = Workload(sequence_length=4096, global_batch=64)
    space = space_of(gpus(1, 8, 24, 64), workload=workload, model_summary=llama("llama-2-70b"))
    suggestion = next_config(space, (), [], (), gate_of(space), 0)
    assert suggestion.config is None and suggestion.origin is None
    assert 0 < len(suggestion.rejections) <= 32


def test_the_only_configurations_that_fit_are_found_in_a_large_space():
    workload = Workload(sequence_length=4096, global_batch=64)
    space = space_of(gpus(1, 8, 24, 2048), workload=workload, model_summary=llama("llama-2-70b"))
    gate = gate_of(space)
    config = next_config(space, (), [], (), gate, 0).config
    assert config is not None and gate(config) is None


def test_sizes_outside_the_space_are_learnt_from_only_when_they_ran():
    space = space_of(cpu())
    foreign = TrialConfig(strategy=DdpConfig(bucket_cap_mb=999))
    history = search(space, by_micro_batch, 10)
    crashed = Observation(
        10, foreign, "sampler", TrialState.FAILED, failure=Failure(kind=FailureKind.CRASH, message="boom")
    )

    def suggested(reported):
        """Proposals of twelve samplers that differ in their seed only, without the failed trial."""
        return [next_config(space, (), [*history, reported], (), open_gate, seed).config for seed in range(12)]

    unheard = suggested(crashed)
    # Out of memory would teach of what takes as much (tuner.search.dominance).
    assert suggested(infeasible(10, foreign, FailureKind.NUMERICS)) == unheard
    assert sum(config.backend == "ddp" for config in suggested(complete(10, foreign, 1e6))) > sum(
        config.backend == "ddp" for config in unheard
    )

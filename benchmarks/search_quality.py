"""Does the sampler find faster configurations than chance? A synthetic cluster, many seeds, a bounded time.

Run: python benchmarks/search_quality.py [--seeds 20] [--trials 24]

Prints, for TPE and for uniform sampling, the best speed found as a share of the best known, averaged over seeds,
how many trials ran out of memory, and the time of one ask. Nothing is trained: speeds come from a formula with
the shape of the real trade-offs (efficiency by micro batch, recomputation, exposed communication, memory).
"""

import argparse
import random
import time
from collections.abc import Callable
from statistics import fmean, median, stdev

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.failures import Failure, FailureKind
from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.measurements import Measurement, Memory
from shardtune.api_schemas.models import BlockProfile, ModelProfile
from shardtune.api_schemas.search_space import SpaceLimits
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies import Objective
from shardtune.api_schemas.trials import TrialState
from shardtune.api_schemas.workload import Workload, gradient_accumulation
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.search.seeds import seed_configs
from shardtune.tuner.search.space import Space, build
from shardtune.tuner.search.suggest import next_config

HIDDEN, LAYERS, VOCAB = 2048, 16, 128_256
BLOCK = 60_821_504
CLUSTER = Cluster(gpus_per_node=4, nodes=2, memory_gib=24, host_memory_gib=512)
WORKLOAD = Workload(sequence_length=2048, global_batch=128)
TOTAL = LAYERS * BLOCK + VOCAB * HIDDEN
PROFILE = ModelProfile(
    parameters=TOTAL,
    active_parameters=TOTAL,
    blocks=tuple(
        BlockProfile(name=f"layers.{i}", parameters=BLOCK, largest_parameter=4 * HIDDEN**2, forward_flops_per_token=1)
        for i in range(LAYERS)
    ),
    block_class="Block",
    forward_flops_per_token=1,
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    max_positions=None,
)
SHAPE = ModelShape(
    name="llama-3.2-1b",
    layers=LAYERS,
    hidden=HIDDEN,
    heads=32,
    kv_heads=8,
    head_dim=64,
    ffn=8192,
    vocab=VOCAB,
    tied=True,
)
_RECOMPUTE = {"none": 1.0, "selective": 1.08, "full": 1.30}
_ACTIVATIONS = {"none": 34.0, "selective": 14.0, "full": 2.0}


def _of_blocks(config: TrialConfig, by_mode: dict[str, float]) -> float:
    """Mean over the blocks, of which every so many-th is checkpointed."""
    plain = by_mode["none"]
    return plain + (by_mode[config.activation_checkpointing] - plain) / config.checkpoint_every


def score(config: TrialConfig) -> float | None:
    """Tokens per second of a made-up 2 × 4 GPU cluster with a slow link between nodes; None: out of memory."""
    tokens = config.micro_batch * WORKLOAD.sequence_length
    activations = _of_blocks(config, _ACTIVATIONS) * tokens * HIDDEN * LAYERS
    states = {**_terms(config), "activations": 0.0, "recomputation": 0.0, "logits": 0.0}
    held = sum(states.values()) + activations + 2 * GIB
    if held > CLUSTER.memory_gib * GIB * 0.95:
        return None
    accumulation = gradient_accumulation(WORKLOAD.global_batch, config.micro_batch, CLUSTER.world_size)
    # Small kernels are less efficient; a nearly full device retries allocations.
    compute = accumulation * (tokens + 1500) * _of_blocks(config, _RECOMPUTE) / 20_000
    if held > CLUSTER.memory_gib * GIB * 0.88:
        compute *= 1.15
    return WORKLOAD.tokens_per_step / CLUSTER.world_size / (compute + _communication(config, accumulation, compute))


def _terms(config: TrialConfig) -> dict[str, float]:
    candidate = from_configs([config], WORKLOAD.sequence_length, CLUSTER.world_size, WORKLOAD.global_batch)
    table = peak_memory(SHAPE, candidate, Dtypes.of(WORKLOAD.recipe), Implementation.of(WORKLOAD))
    return {name: float(values.flat[0]) for name, values in table.terms.items()}


def _communication(config: TrialConfig, accumulation: int, compute: float) -> float:
    """Exposed seconds per step: what the slow link carries, less what hides behind computation."""
    link = 1.2e9
    strategy = config.strategy
    match strategy:
        case DdpConfig():
            reductions = accumulation if strategy.grad_sync == "every" else 1
            hidden = 0.5 if 50 <= strategy.bucket_cap_mb <= 300 else 0.3
            return reductions * 2 * TOTAL * 4 / link / 4 * (1 - hidden) + (
                0 if strategy.gradient_as_bucket_view else 0.05
            )
        case ZeroConfig():
            reductions = 1 if strategy.stage == 1 else accumulation
            volume = TOTAL * (4 * reductions + 2 * (2 * accumulation if strategy.stage == 3 else 1))
            hidden = (0.6 if strategy.overlap_comm else 0.1) * (0.5 + 0.5 * (strategy.reduce_bucket_size >= BLOCK))
            offload = 1.5 if strategy.offload_optimizer else 0.0
            nodes = 1 if strategy.zero_hpz_partition_size == 1 else 0.6
            return volume * nodes / link / 4 * (1 - hidden) + offload
        case Fsdp1Config():
            kept = strategy.keeps_parameters
            twin = Fsdp2Config(
                dp_replicate=strategy.dp_replicate, dp_shard=strategy.dp_shard, reshard_after_forward=not kept,
                backward_prefetch=int(strategy.backward_prefetch is not None), grad_sync=strategy.grad_sync,
            )  # fmt: skip
            return 1.05 * _communication(config.model_copy(update={"strategy": twin}), accumulation, compute)
        case Fsdp2Config():
            reductions = accumulation if strategy.grad_sync == "every" else 1
            gathers = accumulation * (1 if strategy.reshard_after_forward is False else 2)
            across = 0.15 if strategy.dp_shard <= CLUSTER.gpus_per_node else 1.0
            hidden = min(0.8, 0.5 + 0.1 * strategy.forward_prefetch + 0.1 * strategy.backward_prefetch)
            launch = 0.002 * accumulation * LAYERS / strategy.blocks_per_unit
            volume = TOTAL * (4 * reductions + 2 * gathers * across)
            return volume / link / 4 * (1 - hidden) + launch


Ask = Callable[[list[Observation], set[str], int], TrialConfig | None]


def best_after(ask: Ask, trials: int, seed: int) -> tuple[float, int]:
    """The best speed found, and how many trials ran out of memory."""
    history: list[Observation] = []
    for number in range(trials):
        config = ask(history, set(), seed)
        if config is None:
            break
        speed = score(config)
        if speed is None:
            failure = Failure(kind=FailureKind.OOM, message="out of memory")
            history.append(Observation(number, config, "sampler", TrialState.INFEASIBLE, failure=failure))
        else:
            history.append(Observation(number, config, "sampler", TrialState.COMPLETE, _measured(speed)))
    speeds = [obs.measurement.tokens_per_s_per_gpu for obs in history if obs.measurement is not None]
    return max(speeds, default=0.0), len(history) - len(speeds)


def _measured(speed: float) -> Measurement:
    return Measurement(
        tokens_per_s_per_gpu=speed,
        step_time_s=1,
        step_time_half_width_s=0,
        memory=Memory(peak_allocated_gib=None),
        wrap_time_s=0,
        warmup_steps=0,
        measured_steps=1,
        window_step_times_s=(1,),
        trajectory=(),
        losses=(),
        gradient_accumulation=1,
        elapsed_s=1,
    )


def samplers(space: Space) -> dict[str, Ask]:
    """TPE as shipped, and uniform sampling, with the same seeds and the same gate."""
    seeds = seed_configs(space, CLUSTER, None)

    def gate(config: TrialConfig):
        return memory_gate.gate(config, SHAPE, WORKLOAD, CLUSTER, Objective(), MemoryCalibration())

    def tpe(history: list[Observation], rejected: set[str], seed: int) -> TrialConfig | None:
        return next_config(space, seeds, history, rejected, gate, seed).config

    def uniform(history: list[Observation], rejected: set[str], seed: int) -> TrialConfig | None:
        seen = {space.key(obs.config) for obs in history}
        rng = random.Random(f"{seed}:{len(history)}")
        draws = [config for config, _ in seeds]
        draws += [c for _ in range(500) if (c := space.sample(lambda _, values: rng.choice(values))) is not None]
        return next((c for c in draws if space.key(c) not in seen and gate(c) is None), None)

    return {"tpe": tpe, "uniform": uniform}


def best_known(space: Space, draws: int = 40_000) -> float:
    """The best of many random draws: a lower bound of what there is to find."""
    rng = random.Random(0)
    drawn = [space.sample(lambda _, values: rng.choice(values)) for _ in range(draws)]
    return max((score(config) or 0.0) for config in drawn if config is not None)


def main() -> None:
    """Compare the samplers and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=24)
    options = parser.parse_args()
    space = build(WORKLOAD, CLUSTER, PROFILE, SpaceLimits())
    best = best_known(space)
    print(f"best known {best:.0f} tokens/s/GPU; {options.seeds} seeds × {options.trials} trials")
    for name, ask in samplers(space).items():
        started = time.perf_counter()
        found = [best_after(ask, options.trials, seed) for seed in range(options.seeds)]
        shares = [speed / best for speed, _ in found]
        per_ask = (time.perf_counter() - started) / options.seeds / options.trials
        print(
            f"{name:8} best found {fmean(shares):.3f} ± {stdev(shares):.3f} of the best known (median {median(shares):.3f}), "
            f"{fmean(oom for _, oom in found):.1f} trials out of memory, {per_ask * 1e3:.1f} ms a trial"
        )


if __name__ == "__main__":
    main()

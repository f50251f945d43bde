"""Profiles, clusters and measurements for the tuner's tests."""

import math
from collections.abc import Callable

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import BlockSummary, ModelSpec, ModelSummary, preset
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement, Memory, StepRecord
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.trial import Rejection, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.traced_shape import of_study
from shardtune.tuner.search.space import Space, build
from shardtune.tuner.search.suggest import next_config


def llama(name: str) -> ModelSummary:
    """The profile of a Llama preset, counted by hand (no biases, untied head)."""
    config = preset(name).config
    hidden, middle, layers = (int(config[k]) for k in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    heads, kv, vocab = (int(config[k]) for k in ("num_attention_heads", "num_key_value_heads", "vocab_size"))
    block = 2 * hidden * hidden + 2 * hidden * hidden * kv // heads + 3 * hidden * middle + 2 * hidden
    total = layers * block + 2 * vocab * hidden + hidden
    blocks = tuple(
        BlockSummary(
            name=f"model.layers.{i}", parameters=block, largest_parameter=hidden * middle, forward_flops_per_token=block
        )
        for i in range(layers)
    )
    return ModelSummary(
        parameters=total,
        active_parameters=total,
        blocks=blocks,
        block_class="LlamaDecoderLayer",
        forward_flops_per_token=2 * total,
        hidden_size=hidden,
        vocab_size=vocab,
        max_positions=None,
        context_heads=math.gcd(heads, kv),
        tensor_divisor=math.gcd(heads, kv, middle),
        pipeline_blocks=layers,
        experts=1,
        expert_width=1,
        expert_note="it has no experts",
    )


def shape(name: str) -> ModelShape:
    """Shape with which a study of that preset predicts."""
    return of_study(preset(name), llama(name))


TINY = llama("llama-tiny")
WORKLOAD = Workload(sequence_length=128, global_batch=16)


def gpus(nodes: int = 1, per_node: int = 8, memory_gib: float = 80, host_memory_gib: float = 2048) -> Cluster:
    return Cluster(nodes=nodes, gpus_per_node=per_node, memory_gib=memory_gib, host_memory_gib=host_memory_gib)


def cpu(ranks: int = 2, memory_gib: float = 4) -> Cluster:
    return Cluster(device="cpu", gpus_per_node=ranks, memory_gib=memory_gib, host_memory_gib=16)


def space_of(
    cluster: Cluster,
    limits: SpaceLimits | None = None,
    workload: Workload = WORKLOAD,
    model_summary: ModelSummary = TINY,
) -> Space:
    return build(workload, cluster, model_summary, limits or SpaceLimits())


def tiny_space() -> Space:
    """A few dozen configurations."""
    knobs = {"micro_batch": (1, 2), "activation_checkpointing": "none", "bucket_cap_mb": (1, 25), "dp_shard": 2}
    return space_of(cpu(), SpaceLimits(backends=("ddp", "fsdp2"), knobs=knobs))


def measured(speed: float, loss: float = 5.0, memory_gib: float = 0.5) -> Measurement:
    steps = tuple(
        StepRecord(step=i, loss=loss - 0.1 * i, grad_norm=2.0, parameter_sum=10.0, parameter_square_sum=1e4)
        for i in range(3)
    )
    return Measurement(
        tokens_per_s_per_gpu=speed,
        step_time_s=1 / speed,
        step_time_half_width_s=0,
        memory=Memory(peak_allocated_gib=memory_gib),
        wrap_time_s=1,
        warmup_steps=4,
        measured_steps=9,
        window_step_times_s=(1 / speed,) * 3,
        trajectory=steps,
        losses=tuple(step.loss for step in steps),
        gradient_accumulation=1,
        elapsed_s=5,
    )


def complete(
    number: int, config: TrialConfig, speed: float = 100.0, origin: str = "sampler", **more: object
) -> Observation:
    loss = float(more.pop("loss", 5.0))
    return Observation(number, config, origin, TrialState.COMPLETE, measured(speed, loss), **more)


def infeasible(number: int, config: TrialConfig, kind: FailureKind = FailureKind.OOM) -> Observation:
    return Observation(number, config, "sampler", TrialState.INFEASIBLE, failure=Failure(kind=kind, message="too big"))


def gate_of(space: Space, objective: Objective | None = None) -> Callable[[TrialConfig], Rejection | None]:
    domains = space.domains
    counted = of_study(ModelSpec(name="counted", config={"model_type": "any"}), domains.model_summary)
    return lambda config: memory_gate.reject_if_too_large(
        config, counted, domains.workload, domains.cluster, objective or Objective(), MemoryCalibration()
    )


def open_gate(config: TrialConfig) -> None:
    return None


def search(
    space: Space, score: Callable[[TrialConfig], float | None], trials: int, seed: int = 0, seeds: tuple = ()
) -> list[Observation]:
    """Run a study against a function; None is an out-of-memory."""
    history: list[Observation] = []
    for number in range(trials):
        suggestion = next_config(space, seeds, history, (), open_gate, seed)
        if suggestion.config is None:
            break
        speed = score(suggestion.config)
        ran = complete(number, suggestion.config, speed) if speed is not None else infeasible(number, suggestion.config)
        history.append(ran)
    return history

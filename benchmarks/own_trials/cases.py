"""The configurations that the predictor is held against on this machine: workloads, and a fixed draw from their spaces.

Drawn, not chosen: every knob of the search space at random, so many of each strategy.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search import space

SEED = 4
_LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
_GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 3000, "n_positions": 256, "n_embd": 128, "n_layer": 6, "n_head": 4,
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_NEOX: dict[str, Any] = {
    "model_type": "gpt_neox", "vocab_size": 2500, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 5,
    "num_attention_heads": 4, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 3000, "hidden_size": 160, "intermediate_size": 400, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 40, "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}  # fmt: skip
_MIXTRAL: dict[str, Any] = _LLAMA | {
    "model_type": "mixtral", "num_hidden_layers": 3, "intermediate_size": 192, "num_local_experts": 4,
    "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip

_WIDE: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "head_dim": 16,
}  # fmt: skip
"""A vocabulary of the size that Llama 2 has, which makes the logits the largest tensor of a step."""

_DEEP_LLAMA: dict[str, Any] = _LLAMA | {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 16,
}  # fmt: skip
_WIDE_MLP: dict[str, Any] = _DEEP_LLAMA | {"intermediate_size": 512, "num_hidden_layers": 6}
_FEW_WORDS: dict[str, Any] = {"vocab_size": 64}
"""A vocabulary so small that memory does not peak in the loss."""
_DEEP_GPT2: dict[str, Any] = _GPT2 | {"vocab_size": 512, "n_positions": 512, "n_embd": 64, "n_layer": 16}

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"backend": "ddp"},
    "zero1": {"backend": "zero", "stage": 1, "offload_optimizer": "none"},
    "zero2": {"backend": "zero", "stage": 2, "offload_optimizer": "none"},
    "zero3": {"backend": "zero", "stage": 3, "offload_optimizer": "none", "offload_param": "none"},
    "zero-offload": {"backend": "zero", "offload_optimizer": "cpu"},
    "fsdp2": {"backend": "fsdp2", "dp_replicate": 1},
    "fsdp2-offload": {"backend": "fsdp2", "cpu_offload": True},
    "hsdp": {"backend": "fsdp2"},
    "fsdp1": {"backend": "fsdp1"},
}
"""Kinds of configurations, each with the knobs that define it."""
_MESHES: dict[str, dict[str, Any]] = {
    "tensor": {"backend": "fsdp2", "tensor_parallel": 2},
    "pipeline": {"backend": "fsdp2", "pipeline_parallel": [2, 4]},
    "context": {"backend": "fsdp2", "context_parallel": 2},
    "tensor-pipeline": {"backend": "fsdp2", "tensor_parallel": 2, "pipeline_parallel": 2},
    "tensor-context": {"backend": "fsdp2", "tensor_parallel": 2, "context_parallel": 2},
    "pipeline-context": {"backend": "fsdp2", "pipeline_parallel": 2, "context_parallel": 2},
    "ddp-context": {"backend": "ddp", "context_parallel": 2},
    "zero1-context": {"backend": "zero", "stage": 1, "offload_optimizer": "none", "context_parallel": 2},
    "zero2-context": {"backend": "zero", "stage": 2, "offload_optimizer": "none", "context_parallel": 2},
    "zero3-context": {
        "backend": "zero", "stage": 3, "offload_optimizer": "none", "offload_param": "none", "context_parallel": 2,
    },
}  # fmt: skip
"""Layouts beyond data parallelism, on four ranks."""
_LEVERS: dict[str, Any] = {
    "loss": ["full", "chunked"], "loss_chunk": [64, 256], "activation_offload": [False, True], "mlp_slices": [1, 4, 16],
}  # fmt: skip
"""Levers on memory that the search tries by itself only where tensors are larger than those of these models."""
_ALL = ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")


@dataclass(frozen=True)
class Job:
    """A model trained on so many CPU ranks."""

    name: str
    model: ModelSpec
    workload: Workload
    ranks: int
    per_strategy: int
    strategies: Mapping[str, dict[str, Any]] = field(default_factory=lambda: STRATEGIES)
    """Fixed knobs of each kind of configuration; the others are drawn."""

    @property
    def cluster(self) -> Cluster:
        """CPU ranks of this machine; the memory is only declared, and nothing is rejected for it."""
        return Cluster(device="cpu", gpus_per_node=self.ranks, memory_gib=4, host_memory_gib=16)


def _job(name: str, config: dict[str, Any], precision: str, ranks: int = 2, per_strategy: int = 5) -> Job:
    workload = Workload(sequence_length=64, global_batch=8, precision=PRECISIONS[precision])
    return Job(name, ModelSpec(name=name, config=config), workload, ranks, per_strategy)


def _wide(name: str, config: dict[str, Any], precision: str) -> Job:
    """A wide vocabulary and few blocks: the loss counts."""
    workload = Workload(sequence_length=128, global_batch=8, precision=PRECISIONS[precision])
    return Job(name, ModelSpec(name=name, config=config | _WIDE), workload, 2, 2)


def _long(name: str, config: dict[str, Any], precision: str) -> Job:
    """Long samples, narrow blocks and many of them: the blocks' inputs count."""
    workload = Workload(sequence_length=512, global_batch=8, precision=PRECISIONS[precision])
    return Job(name, ModelSpec(name=name, config=config), workload, 2, 2)


def _levered(
    name: str,
    config: dict[str, Any],
    precision: str,
    kinds: tuple[str, ...] = _ALL,
    per_strategy: int = 2,
    **recipe: Any,
) -> Job:
    """Levers on memory, and recipes: each backend that trains them, with tokens and a vocabulary that make the levers count."""
    sizes: dict[str, Any] = {"sequence_length": 256, "global_batch": 8, "precision": PRECISIONS[precision]}
    workload = Workload.model_validate(sizes | recipe)
    strategies = {kind: STRATEGIES[kind] | _LEVERS for kind in kinds}
    return Job(name, ModelSpec(name=name, config=config | {"vocab_size": 8192}), workload, 2, per_strategy, strategies)


def _mesh(name: str, config: dict[str, Any], precision: str) -> Job:
    """Layouts of four ranks; samples enough for four micro batches on each."""
    workload = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS[precision])
    return Job(name, ModelSpec(name=name, config=config), workload, 4, 3, _MESHES)


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        _job("llama-bf16", _LLAMA, "bf16-mixed"),
        _job("gpt2-bf16", _GPT2, "bf16-mixed"),
        _job("gpt2-fp32", _GPT2, "fp32", per_strategy=2),
        _job("mixtral-bf16", _MIXTRAL, "bf16-mixed", per_strategy=2),
        _job("llama-fp32", _LLAMA, "fp32", per_strategy=3),
        _job("neox-bf16", _NEOX, "bf16-mixed", per_strategy=3),
        _job("llama-4-ranks", _LLAMA, "bf16-mixed", ranks=4, per_strategy=2),
        _wide("llama-32k-fp32", _LLAMA, "fp32"),
        _wide("llama-32k-bf16", _LLAMA, "bf16-mixed"),
        _wide("qwen3-32k-fp32", _QWEN3, "fp32"),
        _long("llama-deep-fp32", _DEEP_LLAMA, "fp32"),
        _long("gpt2-deep-fp32", _DEEP_GPT2, "fp32"),
        _long("llama-mlp-fp32", _WIDE_MLP, "fp32"),
        _long("llama-mlp-bf16", _WIDE_MLP, "bf16-mixed"),
        _long("llama-mlp-few-words-fp32", _WIDE_MLP | _FEW_WORDS, "fp32"),
        _long("llama-mlp-few-words-bf16", _WIDE_MLP | _FEW_WORDS, "bf16-mixed"),
        _long("gpt2-mlp-few-words-fp32", _DEEP_GPT2 | _FEW_WORDS | {"n_layer": 6}, "fp32"),
        _levered("llama-levers-fp32", _LLAMA, "fp32", per_strategy=3),
        _levered("gpt2-levers-bf16", _GPT2, "bf16-mixed", per_strategy=3),
        _levered("llama-levers-bf16-true", _LLAMA, "bf16-true"),
        _levered("llama-levers-adamw-bf16", _LLAMA, "bf16-true", optimizer="adamw-bf16"),
        _levered("llama-levers-8bit", _LLAMA, "bf16-mixed", ("ddp", "zero1", "zero2", "zero3"), optimizer="adamw-8bit"),
        _levered("llama-levers-muon", _LLAMA, "bf16-mixed", ("ddp", "fsdp2"), optimizer="muon"),
        _levered("llama-levers-fp8", _LLAMA, "bf16-mixed", ("ddp", "zero2", "fsdp1", "fsdp2"), float8="tensorwise"),
        _mesh("llama-meshes", _LLAMA | {"num_key_value_heads": 4}, "bf16-mixed"),
        _mesh("qwen3-meshes", _QWEN3, "fp32"),
    )
}


def draw(job: Job, model_summary: ModelSummary, seed: int = SEED) -> Iterator[tuple[str, TrialConfig]]:
    """Strategy and configuration, `per_strategy` different ones of each; the same ones every time with a seed."""
    drawn_keys: set[str] = set()
    for name, knobs in job.strategies.items():
        limits = {knob: value for knob, value in knobs.items() if knob != "backend"}
        if name == "hsdp":
            limits["dp_replicate"] = 2
        built = space.build(
            job.workload, job.cluster, model_summary, SpaceLimits(backends=(knobs["backend"],), knobs=limits)
        )
        rng = random.Random(f"{seed}:{job.name}:{name}")
        drawn_count = 0
        for _ in range(400):
            config = built.sample(lambda _, values: rng.choice(values))  # noqa: B023 -- called at once
            if config is None or built.key(config) in drawn_keys:
                continue
            drawn_keys.add(built.key(config))
            yield name, config
            drawn_count += 1
            if drawn_count == job.per_strategy:
                break


def remaining(planned: list[dict[str, str]], recorded_rows: list[dict[str, str]], rounds: int) -> list[dict[str, str]]:
    """Rows that are still to run, in the order to run them: round by round, each shuffled over all jobs with a fixed
    seed."""
    done = {(row["job"], row["config"], row.get("round", "1")) for row in recorded_rows}
    missing_rows = []
    for number in range(1, rounds + 1):
        order = list(planned)
        random.Random(f"{SEED}:{number}").shuffle(order)
        rows = [row | {"round": str(number)} for row in order]
        missing_rows += [row for row in rows if (row["job"], row["config"], row["round"]) not in done]
    return missing_rows

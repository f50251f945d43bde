"""Questions about memory, speed and the choice of a configuration. Keys are published measurements, or follow from sizes
and shapes alone.
"""

from functools import partial
from typing import Any

from benchmarks.agent_questions.question import Answers, Question, band, covers, equals, job, near

_GIB = 1 << 30
_PARAMETERS_7B, _PARAMETERS_8B, _PARAMETERS_70B = 6.738e9, 8.03e9, 69.0e9
_FMS = "foundation-model-stack/fms-fsdp, README"
_ATORCH = "intelligent-machine-learning/atorch, examples/llama2/README.md"

# Rows without checkpointing or with full checkpointing alone: each program means another set of tensors by `selective`.
_FULL_7B = ((1, 3345.1), (2, 3223.4), (4, 3204.1), (8, 3189.4))
"""Nodes and tokens per second and GPU of Llama 2 7B in atorch's table: FSDP1 on A100, micro batch 4, full checkpointing.
Its memory is no key: that program keeps caches and copies of the logits beside what is trained."""
_IBM = (
    ("llama-2-7b", 16, "a100-80gb", "none", 3700),
    ("llama-2-7b", 12, "h100", "none", 7500),
    ("llama-2-70b", 16, "a100-80gb", "full", 370),
    ("llama-2-70b", 12, "h100", "full", 800),
)
"""Model, nodes, GPU, checkpointing and tokens per second and GPU of fms-fsdp's table without compile: FSDP1, micro batch
2, the smaller model replicated over nodes."""


def _fsdp2(gpus: int = 8, **more: Any) -> dict[str, Any]:
    return {"strategy": {"kind": "fsdp2", "dp_shard": gpus}, **more}


def _atorch(nodes: int) -> dict[str, Any]:
    strategy = {"kind": "fsdp1", "dp_shard": 8 * nodes}
    config = {"strategy": strategy, "micro_batch": 4, "activation_checkpointing": "full"}
    return job("llama-2-7b", f"{nodes}x8xa100-80gb", sequence_length=4096, global_batch=32 * nodes, config=config)


def _ibm(row: tuple[str, int, str, str, int], compiled: bool = False) -> dict[str, Any]:
    model, nodes, gpu, checkpointing, _ = row
    strategy: dict[str, Any] = {"kind": "fsdp1", "dp_shard": 8 * nodes, "use_orig_params": True}
    if checkpointing == "none":
        strategy |= {"sharding_strategy": "HYBRID_SHARD", "dp_replicate": nodes, "dp_shard": 8}
    config = {"strategy": strategy, "micro_batch": 2, "activation_checkpointing": checkpointing, "compile": compiled}
    return job(model, f"{nodes}x8x{gpu}", sequence_length=4096, global_batch=nodes * 16, config=config)


def _states() -> list[Question]:
    """Return questions about the states of each GPU, whose keys are the formulas of ZeRO (arXiv:1910.02054, figure 1)."""
    states_gib = 8 * _PARAMETERS_7B / _GIB
    rows: tuple[tuple[str, dict[str, Any], str, float], ...] = (
        ("AdamW's two states under DDP", {"kind": "ddp"}, "optimizer", states_gib),
        ("AdamW's two states under ZeRO-1", {"kind": "zero", "stage": 1}, "optimizer", states_gib / 64),
        ("the bf16 parameters under ZeRO-3", {"kind": "zero", "stage": 3}, "parameters", states_gib / 4 / 64),
        ("AdamW's states under FSDP2 that shards over a node and replicates over 8 nodes",
         {"kind": "fsdp2", "dp_shard": 8, "dp_replicate": 8}, "optimizer", states_gib / 8),
    )  # fmt: skip
    return [
        Question(
            "memory",
            f"How many GiB on each of 64 A100 are {what}, for Llama 2 7B?",
            (("explain_config", job("llama-2-7b", "8x8xa100-80gb", config={"strategy": strategy})),),
            partial(_term, name=term),
            near(gib, 0.03),
            f"{gib:.3g} GiB: bytes × 6.738e9 over the ranks that share them (arXiv:1910.02054, figure 1)",
        )
        for what, strategy, term, gib in rows
    ]


def _term(answers: Answers, name: str) -> float:
    return float(sum(term["gib"] for term in answers[0]["memory_terms"] if term["name"] == name))


def _measured_speed() -> list[Question]:
    rows = [(_atorch(nodes), speed, _ATORCH) for nodes, speed in _FULL_7B]
    rows += [(_ibm(row), float(row[4]), _FMS) for row in _IBM]
    return [
        Question(
            "speed",
            f"How fast does {arguments['model']} train with FSDP1 on {arguments['cluster']}, micro batch "
            f"{arguments['config']['micro_batch']}, checkpointing {arguments['config']['activation_checkpointing']}?",
            (("explain_config", arguments),),
            lambda answers: band(answers[0]["configuration"]["speed"]),
            covers(speed),
            f"{speed:g} tokens/s/GPU measured ({source})",
        )
        for arguments, speed, source in rows
    ]


def _row(answer: dict[str, Any], kind: str, **fields: Any) -> dict[str, Any]:
    for row in answer["strategies"]:
        strategy = row["config"]["strategy"]
        if strategy["kind"] == kind and all(strategy.get(name) == value for name, value in fields.items()):
            return dict(row)
    raise KeyError(kind)


_EIGHT = job("llama-3.1-8b", "8xh100")
_SHARDED = _EIGHT | {"config": _fsdp2(activation_checkpointing="full")}
_STATES_GIB = 8 * _PARAMETERS_8B / 8 / _GIB
_LONG = _EIGHT | {"sequence_length": 32768, "config": _fsdp2()}
_SIZES = (
    Question(
        "memory", "Can I train Llama 3.1 8B with AdamW on one H100 of 80 GB without offloading?",
        (("memory", job("llama-3.1-8b", "1xh100", checkpointing="full")),),
        lambda answers: _row(answers[0], "ddp")["fits"], equals("does not fit"),
        "no: 16 bytes for each of 8.03e9 parameters are 120 GiB",
    ),
    Question(
        "memory", "Does Llama 2 70B fit on 8 A100 of 80 GB when FSDP shards everything, without offloading?",
        (("explain_config", job("llama-2-70b", "8xa100-80gb", config=_fsdp2(activation_checkpointing="full"))),),
        lambda answers: answers[0]["configuration"]["fits"], equals("does not fit"),
        f"no: 16 bytes × {_PARAMETERS_70B:g} / 8 are 128 GiB",
    ),
    Question(
        "memory", "How many GiB are AdamW's two states on each of 8 GPUs, for Llama 3.1 8B sharded by FSDP?",
        (("explain_config", _SHARDED),),
        lambda answers: sum(t["gib"] for t in answers[0]["memory_terms"] if "optimizer" in t["name"].lower()),
        near(_STATES_GIB, 0.03), f"8 bytes × 8.03e9 / 8 = {_STATES_GIB:.2f} GiB",
    ),
    Question(
        "memory", "What fills the memory of Llama 3.1 8B under FSDP2 at micro batch 8 without checkpointing?",
        (("explain_config", _EIGHT | {"config": _fsdp2(micro_batch=8)}),),
        lambda answers: answers[0]["memory_terms"][0]["name"].lower(), lambda name: "activation" in name,
        "activations: about 34 values of the hidden size for each token and layer",
    ),
    Question(
        "memory", "Does Llama 3.1 8B fit on 8 H100 at sequence 32768 without checkpointing?",
        (("explain_config", _LONG),),
        lambda answers: answers[0]["configuration"]["fits"], equals("does not fit"),
        "no: 34 × 4096 bytes × 32 layers × 32768 tokens are 136 GiB of activations",
    ),
    Question(
        "memory", "Does GPT-2 (124 M) fit on one H100 with plain DDP at micro batch 8?",
        (("explain_config", job("gpt2", "1xh100", config={"strategy": {"kind": "ddp"}, "micro_batch": 8})),),
        lambda answers: answers[0]["configuration"]["fits"], equals("fits"),
        "yes: 2 GiB of states and some GiB of activations",
    ),
)  # fmt: skip


_OF_64 = job("llama-3.1-8b", "8xh100", global_batch=64)
_SMALL = job("gpt2", "8xh100", global_batch=64)
_JSON_FILE = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}}
_JSON_FILE |= {"zero_optimization": {"stage": 2}}
_TRAINER = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True, "output_dir": "out"}
_CHOICES = (
    Question(
        "choice", "Which kind of parallelism should I use for Llama 3.1 8B on 8 H100: DDP or sharding?",
        (("predict", _OF_64 | {"top": 1}),),
        lambda answers: answers[0]["configurations"][0]["config"]["strategy"]["kind"],
        lambda kind: kind in ("fsdp1", "fsdp2", "zero"), "sharding: DDP needs 120 GiB on each GPU",
    ),
    Question(
        "choice", "Do I need tensor or pipeline parallelism for Llama 3.1 8B on one node of 8 H100?",
        (("predict", _OF_64 | {"top": 1}),),
        lambda answers: [answers[0]["configurations"][0]["config"]["strategy"].get(name, 1)
                         for name in ("tensor_parallel", "pipeline_parallel")],
        equals([1, 1]), "no: torchtitan's own configuration trains it with FSDP alone, and splitting adds exposed communication",
    ),
    Question(
        "choice", "Should I offload the optimizer to the host when GPT-2 trains on 8 H100?",
        (("explain_config", _SMALL | {"config": {"strategy": {"kind": "zero", "stage": 2, "offload_optimizer": {}},
                                                "micro_batch": 8}}),),
        lambda answers: answers[0]["expected_speedup"]["value"], lambda ratio: ratio > 1.2,
        "no: it fits without, and the host's step and PCIe are slower",
    ),
    Question(
        "choice", "What does full checkpointing cost for Llama 3.1 8B on 8 H100, where it also fits without?",
        tuple(("explain_config", _OF_64 | {"sequence_length": 4096,
                                          "config": _fsdp2(activation_checkpointing=mode)}) for mode in ("none", "full")),
        lambda answers: answers[1]["step_time"]["value"] / answers[0]["step_time"]["value"],
        lambda ratio: 1.1 <= ratio <= 1.45, "one more forward pass: a step becomes up to 4/3 as long",
    ),
    Question(
        "choice", "What does torch.compile gain for Llama 2 7B with FSDP1 on 128 A100 without checkpointing?",
        tuple(("explain_config", _ibm(_IBM[0], compiled)) for compiled in (False, True)),
        lambda answers: answers[1]["configuration"]["speed"]["value"] / answers[0]["configuration"]["speed"]["value"],
        near(4550 / 3700, 0.15), f"a factor of 1.23: 4550 over 3700 tokens/s/GPU ({_FMS})",
    ),
    Question(
        "choice", "Which ZeRO stage and micro batch does my DeepSpeed JSON set?",
        (("explain_config", _OF_64 | {"sequence_length": 4096, "config": _JSON_FILE}),),
        lambda answers: (answers[0]["configuration"]["config"]["strategy"].get("stage"),
                         answers[0]["configuration"]["config"].get("micro_batch", 1)),
        equals((2, 4)), "stage 2, micro batch 4, as the file says",
    ),
    Question(
        "choice", "My TrainingArguments hold 2 samples a device on 8 GPUs: does Llama 3.1 8B fit with them, and what is missing?",
        (("explain_config", _OF_64 | {"sequence_length": 4096, "config": _TRAINER}),),
        lambda answers: (answers[0]["configuration"]["fits"], answers[0]["configuration"]["cheapest_change"] is not None),
        equals(("does not fit", True)), "no: without sharding the Trainer runs DDP; a change that fits is named",
    ),
    Question(
        "choice", "Can I pre-train Llama 3.1 405B on 8 H100, and what would it take?",
        (("predict", job("llama-3.1-405b", "8xh100", top=1)),),
        lambda answers: (any(c["fits"] == "fits" for c in answers[0]["configurations"]), bool(answers[0]["levers"])),
        equals((False, True)), "no: 16 bytes × 405e9 / 8 are 754 GiB; more hardware is named",
    ),
)  # fmt: skip


def questions() -> list[Question]:
    """Return the questions about configurations."""
    return [*_states(), *_SIZES, *_measured_speed(), *_CHOICES]

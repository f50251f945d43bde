"""Read a published measurement: which model, configuration and program a row of `published.csv` describes.

Everything the prediction uses comes from the row's own columns and notes; nothing here knows a measured figure.
"""

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.predictor import columns
from benchmarks.predictor.programs import Row, implementation
from shardtune.api_schemas.machines.gpus import GpuModel
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.candidates import (
    DDP,
    FSDP1,
    FSDP2,
    FULL,
    NONE,
    SELECTIVE,
    SINGLE,
    ZERO,
    Dtypes,
    Implementation,
)
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates, network_of, rates_of

GIGABIT = 1e9 / 8

_BACKENDS: dict[str, tuple[int, int]] = {
    "none": (SINGLE, 0),
    "ddp": (DDP, 0),
    "megatron_ddp": (DDP, 0),
    "zero1": (ZERO, 1),
    "zero2": (ZERO, 2),
    "zero3": (ZERO, 3),
    "fsdp1": (FSDP1, 0),
    "fsdp1_shard_grad_op": (FSDP1, 0),
    "fsdp2": (FSDP2, 0),
    "fsdp2_zero2": (FSDP2, 0),
    "hsdp": (FSDP1, 0),
    "yafsdp": (FSDP2, 0),
}
_CHECKPOINTING = {"none": NONE, "selective": SELECTIVE, "full": FULL}
_REQUIRED = (
    "n_layers", "hidden_size", "n_heads", "ffn_hidden", "vocab", "seq_len", "gpu", "n_gpus", "micro_batch", "backend",
    "act_ckpt",
)  # fmt: skip


class Skipped(ValueError):
    """The row is outside what the predictor covers; the message is the reason."""


@dataclass(frozen=True)
class Case:
    """One row, read."""

    row: Row
    shape: ModelShape
    candidate: dict[str, float]
    dtypes: Dtypes
    implementation: Implementation
    gpu: GpuModel
    rates: Rates
    network: Network
    crashed: str = ""
    """The source's word for it, where the job did not run."""


def hardware_aliases(path: Path) -> dict[str, str]:
    """Every name and alias of `hardware.csv`, to the name the catalogue uses."""
    names: dict[str, str] = {}
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            for name in (line["gpu"], *line["aliases"].split(";")):
                if name.strip():
                    names[name.strip()] = line["gpu"]
    return names


def read(row: Row, aliases: dict[str, str]) -> Case:
    """The row as a prediction's input.

    Raises:
        Skipped: not a data-parallel row, or a field the prediction needs is blank or unknown.
        Misread: an optional column holds what nobody knows.
    """
    status = re.search(r"status=([\w-]+)", row["notes"])
    crashed = status[1] if status and status[1] not in ("ok", "max_batch") else ""
    _check(row, aliases, crashed)
    try:
        shape, candidate = _shape(row), _candidate(row)
    except (ValueError, ZeroDivisionError) as error:
        raise Skipped("a number that cannot be read") from error
    candidate = columns.candidate_of(row, candidate)
    stated = float(row["n_params_b"] or 0) * 1e9
    if stated and not 0.7 < shape.parameters / stated < 1.4:
        raise Skipped("dimensions do not give the stated parameter count")
    program = columns.program_of(row, implementation(row), shape)
    # With the column `state_dtype` an 8-bit optimizer is one whose moments take a byte.
    if re.search(r"\bQLoRA\b" if columns.has_moments(row) else r"\bQLoRA\b|8-bit Adam", row["notes"]):
        raise Skipped("quantised weights or optimizer")
    gpu = catalogue.find(aliases[row["gpu"]])
    gpu = _with_stated_network(gpu, row)
    dtypes = columns.dtypes_of(row, _dtypes(row))
    try:
        rates = rates_of(gpu)
    except ValueError as error:
        raise Skipped("gpu without figures") from error
    return Case(
        row=row,
        shape=shape,
        candidate=candidate,
        dtypes=dtypes,
        implementation=program,
        gpu=gpu,
        rates=_for_precision(rates, gpu, row),
        network=network_of(gpu, int(row["gpus_per_node"] or min(8, int(row["n_gpus"])))),
        crashed=crashed,
    )


def _check(row: Row, aliases: dict[str, str], crashed: str) -> None:
    """Raises Skipped for what the columns alone rule out."""
    for axis in ("tp", "pp", "cp"):
        if row[axis] not in ("", "1"):
            raise Skipped("not data-parallel")
    blank = [name for name in _REQUIRED if not row[name]]
    if blank:
        raise Skipped(f"blank {blank[0]}")
    if row["backend"] not in _BACKENDS:
        raise Skipped(f"backend {row['backend']}")
    if row["gpu"] not in aliases:
        raise Skipped(f"unknown gpu {row['gpu']}")
    if not crashed and not row["tokens_per_s_per_gpu"] and not row["peak_mem_gib"]:
        raise Skipped("no measurement")
    if row["act_ckpt"] not in _CHECKPOINTING:
        raise Skipped(f"checkpointing {row['act_ckpt']}")


def _number(row: Row, field: str, default: int) -> int:
    return int(float(row[field])) if row[field] else default


def _shape(row: Row) -> ModelShape:
    """Dimensions from the columns; the stated parameter count tells a gated MLP from a plain one and tied from untied."""
    layers, hidden, heads = (_number(row, name, 0) for name in ("n_layers", "hidden_size", "n_heads"))
    name = row["model_name"]
    gpt_like = bool(re.search(r"mpt|gpt|bert|megatron|opt\b|neox|pythia|falcon|bloom", name, re.IGNORECASE))
    head_dim = 128 if re.search(r"qwen3", name, re.IGNORECASE) else hidden // heads
    experts = re.search(r"(\d+)x\d+b", name, re.IGNORECASE)
    base = ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_number(row, "n_kv_heads", heads),
        head_dim=head_dim,
        ffn=_number(row, "ffn_hidden", 4 * hidden),
        vocab=_number(row, "vocab", 0),
        experts=int(experts[1]) if experts else 1,
        experts_per_token=2 if experts else 1,
        qk_norm="qwen3" in name.lower(),
        qkv_bias="qwen2" in name.lower(),
    )
    gelu = replace(base, mlp="gelu", norm="layer", tied=True)
    choices = [
        replace(gelu, learned_positions=_number(row, "seq_len", 0)) if gpt_like else gelu,
        replace(gelu, tied=False),
        base,
        replace(base, tied=True),
    ]
    if re.search(r"llama|qwen|mistral|mixtral", name, re.IGNORECASE):
        choices = choices[2:]
    elif gpt_like:
        choices = choices[:2]
    if not row["n_params_b"]:
        return choices[0]
    stated = float(row["n_params_b"]) * 1e9
    return min(choices, key=lambda shape: abs(shape.parameters - stated))


def _dtypes(row: Row) -> Dtypes:
    precision, notes = row["precision"], row["notes"]
    if precision == "fp32":
        return Dtypes(master=4, compute=4, reduce=4, linear_bits=32)
    if "pure bf16" in notes:
        return Dtypes(master=2, compute=2, reduce=2, moments=4.0)
    # DeepSpeed accumulates and reduces in the parameters' dtype unless told otherwise; so do the FSDP1 programs here
    # (Composer's DEFAULT, fms-fsdp's bfSixteen). torchtitan reduces in fp32. Shards and masters are fp32 in all.
    low = row["backend"].startswith("zero") or _BACKENDS.get(row["backend"], (0,))[0] == FSDP1
    reduce = 2 if low and "fp32 reduce" not in notes else 4
    return Dtypes(reduce=reduce, linear_bits=8 if precision in ("fp8", "mxfp8") else 16)


def _candidate(row: Row) -> dict[str, float]:
    backend, stage = _BACKENDS[row["backend"]]
    ranks = _number(row, "n_gpus", 1)
    sharded = backend in (ZERO, FSDP1, FSDP2)
    group_ranks = min(ranks, _number(row, "gpus_per_node", 8)) if row["backend"] == "hsdp" else ranks
    shard = _number(row, "shard_size", group_ranks) if sharded else 1
    if (
        backend == FSDP1
        and re.search("titan|FSDP2|fully_shard", row["source"] + row["notes"])
        and row["backend"] == "hsdp"
    ):
        backend = FSDP2
    keeps = row["backend"] in ("fsdp1_shard_grad_op", "fsdp2_zero2")
    return {
        "backend": backend,
        "stage": stage,
        "shard": shard,
        "replicate": ranks / shard,
        "regather": 1 if keeps else shard,
        "sequence": _number(row, "seq_len", 1),
        "micro_batch": _number(row, "micro_batch", 1),
        "accumulation": _number(row, "grad_accum", 1),
        "checkpointing": _CHECKPOINTING[row["act_ckpt"]],
        "compiled": row["compile"] == "1",
        "offload_optimizer": "optimizer" in row["offload"],
        "offload_parameters": "param" in row["offload"],
    }


_NETWORK = re.compile(
    r"(?:(?P<rails>\d+)\s*[x×]\s*)?(?P<gigabits>\d+) ?Gb/s(?: (?P<kind>(?!per\b|between\b)\w+))?"
    r"(?: (?P<unit>per GPU|per node|between nodes))?"
)
"""Network as stated: `4x100 Gb/s RoCE` is four adapters a node, `400 Gb/s RDMA per GPU` one for each GPU."""
_KINDS = ("RDMA", "RoCE", "IB", "HDR", "NDR", "EFA", "InfiniBand", "Ethernet")


def _with_stated_network(gpu: GpuModel, row: Row) -> GpuModel:
    """The network a row's notes state, per GPU."""
    per_node = int(row["gpus_per_node"] or 8)
    matches = [m for m in _NETWORK.finditer(row["notes"]) if m["unit"] or m["kind"] in _KINDS]
    match = next((match for match in matches if match["unit"]), matches[0] if matches else None)
    if match is None:
        return gpu
    speed = int(match["rails"] or 1) * int(match["gigabits"]) * GIGABIT
    return replace(gpu, network_bytes_per_s=speed if match["unit"] == "per GPU" else speed / per_node)


def _for_precision(rates: Rates, gpu: GpuModel, row: Row) -> Rates:
    """fp32 rows: V100 has no TF32, its vector units give 15.7 TFLOP/s, of which cuBLAS reaches about 90 %."""
    if row["precision"] != "fp32":
        return rates
    fp32 = 15.7e12 * 0.9 if gpu.architecture == "volta" else rates.matmul_flops / 2
    return replace(rates, matmul_flops=fp32, attention_flops=fp32)

"""Checks of the numbers in a baseline file against the workload: a contradiction is an error that names both."""

import json
import math
from collections.abc import Collection, Iterable

from shardtune.api_schemas.training.adapters import AdapterSchema, quantization_of
from shardtune.api_schemas.training.optimizers import AdamSettings, AdamW
from shardtune.api_schemas.training.workload import Precision, Workload
from shardtune.tuner.baseline.section import Section


def describe_precision(precision: Precision) -> str:
    """Text that describes the workload's precision, for an error message."""
    return f"the workload's precision ({precision.name!r}) computes in {precision.compute_dtype}"


def check_bf16(
    name: str, enabled: bool | None, precision: Precision, notes: list[str], remedy_name: str = "bf16-mixed"
) -> None:
    """Check a baseline file's switch for bfloat16 against the workload; the workload decides where the file leaves the
    switch open. `remedy_name`: precision to suggest in the error."""
    workload_side = describe_precision(precision)
    if enabled is None:
        if precision.computes_in_bfloat16:
            notes.append(f"{name} is absent or auto; measured as true, since {workload_side}")
    elif enabled != precision.computes_in_bfloat16:
        remedy = f"precision {remedy_name if enabled else 'fp32'!r}"
        raise ValueError(f"{name} ({str(enabled).lower()}), but {workload_side}; change one of them, e.g. {remedy}")


def check_mixed(
    name: str, enabled: bool | None, precision: Precision, notes: list[str], remedy_name: str = "bf16-mixed"
) -> None:
    """Check the mixed-precision switch of the Trainer or of Accelerate against the workload. If the workload's
    precision keeps states below float32, the model itself must have the lower dtype, which the file does not show."""
    if not precision.has_low_states:
        check_bf16(name, enabled, precision, notes, remedy_name)
    elif enabled:
        raise ValueError(
            f"{name} (true) keeps float32 states, but the workload's precision ({precision.name!r}) keeps them in "
            f"{precision.master_dtype}; set it to false, or use precision {remedy_name!r}"
        )
    else:
        notes.append(f"the model's dtype stands in the script; measured in {precision.master_dtype} throughout")


def ddp_name(adapter: AdapterSchema | None) -> str:
    """Name of the precision in which trials measure what the Trainer and Accelerate do for bf16 under DDP: autocast.
    For quantised weights it is mixed precision instead, since no trial combines autocast with them."""
    return "bf16-autocast" if quantization_of(adapter) is None else "bf16-mixed"


def note_autocast(tool: str, workload: Workload, notes: list[str]) -> None:
    """Add a note that bf16 under DDP is autocast in the Trainer and in Accelerate, and which precision is measured."""
    precision = workload.precision
    if quantization_of(workload.adapter) is not None:
        if not precision.computes_in_float32 and not precision.has_low_states:
            notes.append(
                f"{tool}'s bf16 under DDP is autocast, which no trial does beside 4-bit weights; measured as {precision.name} computes"
            )
    elif precision.autocast:
        notes.append(f"{tool}'s bf16 under DDP is autocast: measured so (precision {precision.name})")
    elif precision.scales_loss:
        notes.append(
            f"{tool}'s fp16 under DDP is autocast, which keeps norms and softmax in float32; measured with weights that are cast "
            f"to float16 ({precision.name})"
        )
    elif not precision.computes_in_float32 and not precision.has_low_states:
        notes.append(
            f"{tool}'s bf16 under DDP is autocast, which keeps norms and softmax in float32; measured as the stated precision "
            f"({precision.name}) computes: state bf16-autocast, or leave the precision out, to measure {tool}'s"
        )


def check_fp16(name: str, enabled: bool | None, precision: Precision, notes: list[str]) -> None:
    """Check a baseline file's switch for float16 against the workload; the workload decides where the file leaves the
    switch open."""
    if enabled is None:
        if precision.scales_loss:
            notes.append(f"{name} is absent or auto; measured as true, since {describe_precision(precision)}")
    elif enabled != precision.scales_loss:
        remedy = "precision 'fp16-mixed'" if enabled else "set it to true"
        raise ValueError(
            f"{name} ({str(enabled).lower()}), but {describe_precision(precision)}; change one of them, e.g. {remedy}"
        )


def check_clipping(section: Section, key: str, workload: Workload, notes: list[str]) -> None:
    """Check a baseline file's limit on the gradient norm against the workload; 0 means no limit."""
    stated, expected = section.number(key), workload.max_grad_norm or 0.0
    if stated is None:
        if expected:
            notes.append(
                f"{section.name(key)} is absent or auto; measured with the workload's max_grad_norm {expected}"
            )
    elif not math.isclose(stated, expected):
        raise ValueError(
            f"{section.name(key)} ({stated}), but the workload's max_grad_norm is {workload.max_grad_norm}; "
            f"make them equal, or drop {key}"
        )


def check_adamw(fields: Iterable[tuple[Section, str, str]], workload: Workload) -> None:
    """Check the AdamW hyperparameters of a baseline file against the workload. `fields`: for each hyperparameter its
    section of the file, its key there, and its name in the workload's optimizer."""
    optimizer = workload.optimizer
    named_values = [(section.name(key), name, section.number(key)) for section, key, name in fields]
    stated = [(field, name, value) for field, name, value in named_values if value is not None]
    if stated and not isinstance(optimizer, AdamSettings):
        field, _, value = stated[0]
        raise ValueError(f"{field} ({value}) is AdamW's, but the workload trains with {optimizer.title}; drop it")
    differing = [
        (field, name, value)
        for field, name, value in stated
        if not math.isclose(value, getattr(optimizer, name), rel_tol=1e-9)
    ]
    if differing:
        field, name, value = differing[0]
        # The remedy is one line that takes over all differing values at once.
        kind = {} if isinstance(optimizer, AdamW) else {"kind": optimizer.kind}
        line = json.dumps({**kind, **{name: value for _, name, value in differing}})
        raise ValueError(
            f"{field} ({value}), but the workload's optimizer.{name} is {getattr(optimizer, name)}; make them equal "
            f'("optimizer": {line} in the study\'s workload), or drop {field}'
        )


def check_product(
    micro: tuple[str, int],
    accumulation: tuple[str, int],
    world: int,
    global_batch: int,
    defaults: Collection[str] = (),
) -> None:
    """Check that micro batch × accumulation × ranks in a baseline file equals the global batch. `defaults`: keys that
    the file lacks, so that the tool's default applies."""
    total = micro[1] * accumulation[1] * world
    if total != global_batch:
        first, second = (f"{count}{' (default)' if key in defaults else ''}" for key, count in (micro, accumulation))
        raise ValueError(
            f"baseline.{micro[0]} × {accumulation[0]} × ranks ({first} × {second} × {world} = {total}), but the "
            f"workload's global_batch is {global_batch}; make them equal"
        )


def check_positive(section: Section, *keys: str) -> None:
    """Check that the batch sizes and counts in a baseline file are at least 1."""
    for key in keys:
        value = section.integer(key)
        if value is not None and value < 1:
            raise ValueError(f"{section.name(key)} ({value}) must be at least 1; drop it to let the workload decide")


def micro_batch_of_accumulation(section: Section, key: str, workload: Workload, world: int) -> int:
    """Micro batch that follows from a baseline file's number of micro batches per step."""
    accumulation, global_batch = section.integer(key) or 1, workload.global_batch
    if global_batch % (world * accumulation):
        raise ValueError(
            f"{section.name(key)} ({accumulation}) × {world} ranks must divide the workload's global_batch ({global_batch}); "
            "give a micro batch, or another global_batch"
        )
    return global_batch // (world * accumulation)

"""Precision in which a fine-tuning tool trains its own file, and its comparison with the workload's.

axolotl and ms-swift load weights in bfloat16 and update these. LLaMA-Factory converts trained weights to float32.
"""

from shardtune.api_schemas.training.workload import Precision, Workload
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline import training_arguments
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools.tool import Tool

_MIXED, _AUTOCAST, _TRUE = "bf16-mixed", "bf16-autocast", "bf16-true"


def implied(tool: Tool, top: Section) -> tuple[str, str] | None:
    """Name of the precision in which a fine-tuning tool trains its file under DDP, such as `bf16-mixed`, with the
    reason. If None, the file asks for another backend or for no bfloat16. `top` is the file, translated to the
    Trainer's fields."""
    is_low = bool(top.flag("pure_bf16")) or _loads(tool, top, "bfloat16")
    if training_arguments.is_sharded(top) or not (is_low or top.flag("bf16")):
        return None
    return _trained(tool, top)


def check(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    """Compare the precision of a fine-tuning tool's file (translated to the Trainer's fields) with the workload's.

    Raises:
        ValueError: the two differ in the dtype of the computation, or in the dtype that the optimizer updates, if the
            file states it.
    """
    precision = workload.precision
    if precision.has_low_states and top.get("deepspeed") is None:
        _check_states(tool, top, precision)
    if top.flag("pure_bf16"):
        if not precision.has_low_states:
            raise ValueError(
                f"baseline.pure_bf16 (true), but the workload's precision ({precision.name!r}) keeps float32 states; use "
                f"precision {_TRUE!r}"
            )
    else:
        _check_computation(tool, top, precision, notes)
    if not precision.computes_in_bfloat16 or top.get("deepspeed") is not None:
        return
    if training_arguments.is_sharded(top):
        if precision.has_low_states and tool.loads_low:
            notes.append(f"{tool.title} under FSDP keeps float32 masters; measured in bfloat16 throughout ({_TRUE})")
        return
    _note_ddp(tool, top, workload, notes)


def _trained(tool: Tool, top: Section) -> tuple[str, str]:
    """Return the precision in which a fine-tuning tool trains if its file switches bf16 on under DDP, with the reason."""
    if top.flag("pure_bf16"):
        return _TRUE, f"{tool.title}'s pure_bf16 loads and updates bfloat16 weights"
    settings = tool.adapter(top.values()).settings
    if settings is not None and "quantization" in settings:
        return (
            _MIXED,
            f"{tool.title} loads weights that are not quantised in bfloat16 and trains LoRA's matrices in float32",
        )
    if not tool.loads_low or _loads(tool, top, "float32"):
        return _AUTOCAST, f"{tool.title} under DDP computes in bfloat16 under autocast"
    if settings is not None and "rank" in settings:
        return _MIXED, f"{tool.title} loads frozen weights in bfloat16 and trains LoRA's matrices in float32"
    reason = f"{tool.title} under DDP loads and updates bfloat16 weights"
    if tool.dtype_key is None or tool.dtype_key in top:
        return _TRUE, reason
    return _TRUE, f"{reason} ({tool.dtype_key} is absent: its model's dtype is taken to be bfloat16)"


def _loads(tool: Tool, top: Section, dtype: str) -> bool:
    """Whether a fine-tuning tool's file names `dtype` as the dtype in which the tool loads weights."""
    return tool.dtype_key is not None and top.get(tool.dtype_key) == dtype


def _check_computation(tool: Tool, top: Section, precision: Precision, notes: list[str]) -> None:
    remedy = _MIXED if training_arguments.is_sharded(top) else _trained(tool, top)[0]
    if not _loads(tool, top, "bfloat16"):
        precisions.check_bf16(top.name("bf16"), top.flag("bf16"), precision, notes, remedy)
    elif not precision.computes_in_bfloat16:
        # Weights in bfloat16 compute in it, with and without autocast.
        raise ValueError(
            f"baseline.{tool.dtype_key} ('bfloat16'), but {precisions.describe_precision(precision)}; change one of them, e.g. "
            f"precision {remedy!r}"
        )


def _check_states(tool: Tool, top: Section, precision: Precision) -> None:
    stated, is_low = None, True
    if not tool.loads_low:
        stated, is_low = "pure_bf16", bool(top.flag("pure_bf16"))
    elif _loads(tool, top, "float32"):
        stated, is_low = tool.dtype_key, False
    if stated is None or is_low:
        return
    value = top.get(stated)
    shown = "is absent" if value is None else f"({str(value).lower()})"
    remedy = "set it to true" if stated == "pure_bf16" else "set it to bfloat16"
    raise ValueError(
        f"baseline.{stated} {shown}: {tool.title} keeps float32 states, but the workload's precision ({precision.name!r}) keeps "
        f"them in {precision.master_dtype}; {remedy}, or use precision {_trained(tool, top)[0]!r}"
    )


def _note_ddp(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    precision = workload.precision
    own, reason = _trained(tool, top)
    if own == precision.name:
        return
    if own == _AUTOCAST:
        precisions.note_autocast(tool.title, workload, notes)
    else:
        notes.append(
            f"{reason}; measured in the workload's precision ({precision.name}): state {own} to measure {tool.title}'s"
        )

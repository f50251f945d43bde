"""Precision that a baseline file implies by the rules of its own tool, used where the workload leaves the precision
open."""

from pydantic import JsonValue

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.adapters import AdapterSchema, quantization_of
from shardtune.api_schemas.training.workload import PRECISIONS, Precision
from shardtune.tuner.baseline import accelerate, tools, training_arguments
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section

_AUTOCAST, _FLOAT16 = "bf16-autocast", "fp16-mixed"


def implied_precision(
    baseline: TrialConfig | dict[str, JsonValue] | None, adapter: AdapterSchema | None = None
) -> tuple[Precision, str] | None:
    """Numeric precision that a baseline file implies for a workload with this adapter, with a note for the user; None
    where the device decides the precision."""
    if not isinstance(baseline, dict) or {"strategy", "kind"} & baseline.keys():
        return None
    try:
        name, reason = _implied(baseline) or (None, "")
    except ValueError:
        # Some value has the wrong type; reading the baseline reports it.
        return None
    if name is None:
        return None
    if name == _AUTOCAST and quantization_of(adapter) is not None:
        name = precisions.ddp_name(adapter)
        reason += ", which no trial does beside 4-bit weights"
    return PRECISIONS[name], f"precision (of the baseline): {name}, because {reason}"


def _implied(baseline: dict[str, JsonValue]) -> tuple[str, str] | None:
    """Name of the precision in which the file's own tool would train, with the reason; None where the file does not
    decide it."""
    if not accelerate.KEYS & baseline.keys() and (tool := tools.recognised(baseline)) is not None:
        # The number of ranks changes no switch of precision.
        fields = tools.fields_of(tool, baseline, 1)
        return tools.implied(tool, Section(fields.values, "baseline", fields.names))
    if _is_float16(baseline):
        return _FLOAT16, "its file trains in float16 with a loss scale"
    program = _autocasting_program(baseline)
    return None if program is None else (_AUTOCAST, f"{program} computes in bfloat16 under autocast")


def _autocasting_program(baseline: dict[str, JsonValue]) -> str | None:
    """Name of the library (Accelerate or transformers) that trains with autocast when it runs this baseline file; None
    if neither does."""
    # bf16 under DDP is autocast in the Trainer and in Accelerate; their other backends have mixed precision of their
    # own, and so has DeepSpeed unless its JSON enables `torch_autocast`.
    top = Section(baseline, "baseline")
    if training_arguments.is_autocast_of_deepspeed(_deepspeed_document(baseline)):
        return "DeepSpeed by torch_autocast"
    if accelerate.KEYS & baseline.keys():
        return "Accelerate under DDP" if accelerate.autocasts(top) else None
    if training_arguments.is_training_arguments(baseline):
        return "the Trainer under DDP" if training_arguments.autocasts(top) else None
    return None


def _is_float16(baseline: dict[str, JsonValue]) -> bool:
    """Whether a file of Accelerate, of the Trainer or of DeepSpeed switches float16 on."""
    top = Section(baseline, "baseline")
    if accelerate.KEYS & baseline.keys() and top.word("mixed_precision") == "fp16":
        return True
    if training_arguments.is_training_arguments(baseline) and top.flag("fp16") is True:
        return True
    document = _deepspeed_document(baseline)
    return isinstance(document, dict) and Section(document, "baseline").section("fp16").flag("enabled") is True


def _deepspeed_document(baseline: dict[str, JsonValue]) -> JsonValue:
    """DeepSpeed JSON that a file of the Trainer or of Accelerate contains; if it contains none, the file itself."""
    config = baseline.get("deepspeed_config")
    nested = config.get("deepspeed_config_file") if isinstance(config, dict) else baseline.get("deepspeed")
    return nested if isinstance(nested, dict) else baseline

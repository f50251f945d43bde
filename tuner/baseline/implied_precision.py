"""Precision that a baseline file implies by the rules of its own tool, used where the workload leaves the precision
open."""

from pydantic import JsonValue

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Precision
from shardtune.tuner.baseline import accelerate, tools, training_arguments
from shardtune.tuner.baseline.section import Section

_AUTOCAST = "bf16-autocast"


def implied_precision(baseline: TrialConfig | dict[str, JsonValue] | None) -> tuple[Precision, str] | None:
    """Numeric precision that a baseline file implies, with a note for the user; None where the device decides the
    precision."""
    # bf16 under DDP is autocast in the Trainer and in Accelerate; their other backends have mixed precision of their
    # own, and so has DeepSpeed unless its JSON enables `torch_autocast`.
    tool = (
        _autocasting_tool(baseline)
        if isinstance(baseline, dict) and not {"strategy", "kind"} & baseline.keys()
        else None
    )
    if tool is None:
        return None
    return PRECISIONS[
        _AUTOCAST
    ], f"precision (of the baseline): {_AUTOCAST}, because {tool} computes in bfloat16 under autocast"


def _autocasting_tool(baseline: dict[str, JsonValue]) -> str | None:
    """Name of the tool that would train the baseline with autocast, None where none would."""
    top = Section(baseline, "baseline")
    try:
        if accelerate.KEYS & baseline.keys():
            return "Accelerate under DDP" if accelerate.autocasts(top) else None
        if (tool := tools.recognised(baseline)) is not None:
            # The number of ranks changes no switch of precision.
            fields = tools.fields_of(tool, baseline, 1)
            return (
                f"{tool.title} under DDP" if training_arguments.autocasts(Section(fields.values, "baseline")) else None
            )
        if training_arguments.is_training_arguments(baseline):
            return "the Trainer under DDP" if training_arguments.autocasts(top) else None
        return "DeepSpeed by torch_autocast" if top.section("torch_autocast").flag("enabled") else None
    except ValueError:
        # Some value has the wrong type; reading the baseline reports it.
        return None

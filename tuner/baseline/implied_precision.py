"""The precision that a user's file means by its own tool's words, where the workload leaves the precision open."""

from pydantic import JsonValue

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Precision
from shardtune.tuner.baseline import accelerate, training_arguments
from shardtune.tuner.baseline.section import Section

_AUTOCAST = "bf16-autocast"


def implied_precision(baseline: TrialConfig | dict[str, JsonValue] | None) -> tuple[Precision, str] | None:
    """The precision, and a note for its user; None: the device decides.

    bf16 under DDP is autocast in the Trainer and in Accelerate; their other backends have mixed precision of their own, and
    so has DeepSpeed unless its JSON enables `torch_autocast`.
    """
    tool = (
        _who_autocasts(baseline) if isinstance(baseline, dict) and not {"strategy", "kind"} & baseline.keys() else None
    )
    if tool is None:
        return None
    return PRECISIONS[
        _AUTOCAST
    ], f"precision (of the baseline): {_AUTOCAST}, because {tool} computes in bfloat16 under autocast"


def _who_autocasts(baseline: dict[str, JsonValue]) -> str | None:
    """None: nobody."""
    top = Section(baseline, "baseline")
    try:
        if accelerate.KEYS & baseline.keys():
            return "Accelerate under DDP" if accelerate.autocasts(top) else None
        if training_arguments.is_meant(baseline):
            return "the Trainer under DDP" if training_arguments.autocasts(top) else None
        return "DeepSpeed by torch_autocast" if top.section("torch_autocast").flag("enabled") else None
    except ValueError:
        # A value of the wrong kind, which reading the baseline names.
        return None

"""Note about the largest part of a step that no finding explains."""

from collections.abc import Collection, Mapping

from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding, FindingKind

_LEAST_FRACTION = 0.15
"""Minimum fraction of the step for which an unexplained part is worth a note."""
PARTS: Mapping[str, tuple[str, tuple[FindingKind, ...]]] = {
    "transferring": (
        "communication that no computation hides",
        (
            *("all_gathers_dominate", "network_limits", "reduces_every_micro_batch"),
            *("buckets_too_large", "buckets_too_small", "units_too_large", "units_too_small"),
        ),
    ),
    "waiting": ("waiting for other ranks", ("late_rank",)),
    "copies": ("copies between host and device", ("offload_costs",)),
    "optimizer": ("the optimizer", ("offload_costs",)),
    "data": ("waiting for data", ("data_waits",)),
    "host": ("the host, which launches nothing,", ("host_bound",)),
    "idle": ("idle time without any event", ("host_bound",)),
}
"""Parts of a step besides computing, each with its description and the kinds of findings that explain it."""
ABOUT_NO_PART: frozenset[FindingKind] = frozenset({"checkpointed_without_need", "out_of_memory"})
"""Kinds of findings about computing or memory. Every other kind of finding explains another part of the step."""


def note(diagnosis: Diagnosis, findings: Collection[Finding]) -> str | None:
    """Return a note if the largest part of the step besides computing takes much of the step and no finding explains
    it; else None."""
    if not diagnosis.step_s:
        return None
    part = max(PARTS, key=lambda name: float(getattr(diagnosis.parts, f"{name}_s")))
    fraction = getattr(diagnosis.parts, f"{part}_s") / diagnosis.step_s
    words, kinds = PARTS[part]
    if fraction < _LEAST_FRACTION or any(finding.kind in kinds for finding in findings):
        return None
    return f"no rule explains the largest part besides computing: {words} takes {fraction:.0%} of the step"

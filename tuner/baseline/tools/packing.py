"""Compare what a fine-tuning tool's file says of packing with the workload's samples."""

from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools.tool import Tool


def check(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    """Reject a fine-tuning tool's file that packs samples in another way than the workload's trials. If the workload
    has no data, note that trials train full rows of one sample each.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    packing = next((key for key in tool.packing if top.flag(key)), None)
    if workload.data is None:
        if packing is not None:
            notes.append(f"{top.name(packing)}: measured with full rows of one sample each")
        return
    apart, layout = tool.packs_apart, workload.data.layout
    is_apart = bool(top.flag(apart))
    if is_apart and workload.data.is_packed:
        return
    if is_apart:
        raise ValueError(
            f"{top.name(apart)} (true) packs samples, but the workload's data.layout is {layout!r}; use layout 'packed', or set "
            "it to false"
        )
    if packing is not None:
        raise ValueError(
            f"{top.name(packing)} (true) joins samples as no trial does; set it to false, or use {apart} and layout 'packed'"
        )
    if workload.data.is_packed:
        raise ValueError(
            f"{top.name(apart)} is absent or false, but the workload's data.layout is 'packed'; set it to true, or use layout "
            "'padded' or 'grouped'"
        )

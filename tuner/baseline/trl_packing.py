"""Compare what a file of TRL's SFTConfig says of packing and of the longest sample with the workload's samples (TRL 1.16)."""

from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.section import Section

_CUTS = "wrapped"
"""TRL's packing strategy that cuts a sample where its row ends, and lets the samples of a row attend to each other."""


def check(top: Section, workload: Workload, notes: list[str]) -> None:
    """Reject a TRL file that packs samples in another way than the workload's trials. If the workload has no data, note
    that trials train full rows of one sample each. A file without `packing` is accepted: it may be for transformers'
    Trainer, where the data set alone decides.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    packs, strategy = top.flag("packing"), top.word("packing_strategy")
    if packs is None:
        return
    name, data = top.name("packing"), workload.data
    if data is None:
        if packs:
            notes.append(f"{name}: measured with full rows of one sample each")
        return
    if packs and not data.is_packed:
        raise ValueError(
            f"{name} (true) packs samples, but the workload's data.layout is {data.layout!r}; use layout 'packed', or set it to "
            "false"
        )
    if data.is_packed and not packs:
        raise ValueError(
            f"{name} (false), but the workload's data.layout is 'packed'; set it to true, or use layout 'padded' or 'grouped'"
        )
    if packs and strategy == _CUTS:
        raise ValueError(
            f"{top.name('packing_strategy')} ({strategy!r}) cuts samples and lets them see each other, as no trial does; use bfd"
        )


def note_length(top: Section, workload: Workload, notes: list[str]) -> None:
    """Note a longest sample in a TRL file that is another one than in the workload's trials. A file without
    `max_length` (`max_seq_length` in older releases) is accepted, since it may be for transformers' Trainer."""
    for key in ("max_length", "max_seq_length"):
        length = top.integer(key)
        if length is not None and length != workload.sequence_length:
            notes.append(
                f"{top.name(key)} ({length}) is not applied: measured with the workload's sequence_length "
                f"{workload.sequence_length}"
            )

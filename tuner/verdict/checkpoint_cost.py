"""What a winner's checkpoints cost the training that the answer is for, and what would make them cheaper."""

from shardtune.api_schemas.trials.resume_check import ResumeMeasurement

_COSTLY = 0.01
"""Share of the time from which saving is worth a change."""
_SLOW = 0.5
"""Share of what one process writes to the disk, below which the disk is not what saving waits for."""
_SHORT_S = 1.0
"""Savings that end sooner are mostly what any saving costs, however little is saved."""
_MB = 1e6
ON_THE_DISK = "most of it for the disk"
"""Said of savings that the disk limits."""


def saving_fraction(measured: ResumeMeasurement, every_s: float) -> float:
    """Of the time of a training that waits for each checkpoint: what is lost of its goodput."""
    return measured.save_s / (every_s + measured.save_s)


def findings(measured: ResumeMeasurement, backend: str, every_s: float) -> tuple[str, ...]:
    """What is slow about saving, each with the remedy; nothing where nothing is worth a change."""
    return tuple(found for found in (_costly(measured, backend, every_s), _slow(measured)) if found)


def _costly(measured: ResumeMeasurement, backend: str, every_s: float) -> str | None:
    share = saving_fraction(measured, every_s)
    if share < _COSTLY:
        return None
    beside = (
        'DeepSpeed\'s "checkpoint": {"writer": {"type": "fast", "decoupled": true}}'
        if backend == "zero"
        else "torch.distributed.checkpoint.async_save"
    )
    waits = f"a training that saves every {every_s:,.0f} s waits {share:.1%} of its time for its checkpoints"
    changes = f"{beside} writes while training goes on (not tried here), or save less often"
    if not _waits_for_disk(measured):
        return f"{waits}: {changes}"
    assert measured.disk is not None
    return f"{waits}, {ON_THE_DISK}, which takes {measured.disk.write_bytes_per_s / _MB:,.0f} MB/s: {changes}, or to a faster disk"


def _reached(measured: ResumeMeasurement) -> float:
    return measured.checkpoint_bytes / max(measured.save_s, 1e-9)


def _waits_for_disk(measured: ResumeMeasurement) -> bool:
    return measured.disk is not None and _reached(measured) >= _SLOW * measured.disk.write_bytes_per_s


def _slow(measured: ResumeMeasurement) -> str | None:
    if measured.disk is None or measured.save_s < _SHORT_S or _waits_for_disk(measured):
        return None
    said = f"saving reaches {_reached(measured) / _MB:,.0f} MB/s where one process writes {measured.disk.write_bytes_per_s / _MB:,.0f} MB/s to this disk"
    if measured.writing_ranks is None or measured.ranks is None or measured.writing_ranks == measured.ranks:
        return f"{said}: most of the time goes into collecting what is saved, not into writing"
    return f"{said}, and {measured.writing_ranks} of {measured.ranks} ranks write: let each rank write its part (torch.distributed.checkpoint)"

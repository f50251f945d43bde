"""Cost of saving checkpoints during the training with the recommended configuration, and remedies that reduce it."""

from shardtune.api_schemas.trials.resume_check import ResumeMeasurement

_COSTLY = 0.01
"""Fraction of the training time spent saving checkpoints, above which a finding suggests a cheaper way of saving."""
_SLOW = 0.5
"""Fraction of the disk's write rate that a save of one process must reach to count as limited by the disk."""
_SHORT_S = 1.0
"""Minimum seconds of a checkpoint save to report its write rate as low: most of a shorter save is a fixed cost that
does not depend on the bytes saved."""
_MB = 1e6
DISK_LIMITED = "most of it for the disk"
"""Phrase in the finding about a checkpoint save that is limited by the disk's write rate."""


def saving_fraction(measured: ResumeMeasurement, every_s: float) -> float:
    """Fraction of the training time spent waiting for checkpoints to be saved (lost goodput).

    `every_s`: seconds of training between two checkpoints.
    """
    return measured.save_s / (every_s + measured.save_s)


def findings(measured: ResumeMeasurement, backend: str, every_s: float) -> tuple[str, ...]:
    """List of findings about slow checkpoint saves, each with its remedy; empty where no change is worth making."""
    return tuple(finding for finding in (_costly(measured, backend, every_s), _slow(measured)) if finding)


def _costly(measured: ResumeMeasurement, backend: str, every_s: float) -> str | None:
    waiting_fraction = saving_fraction(measured, every_s)
    if waiting_fraction < _COSTLY:
        return None
    alternative = (
        'DeepSpeed\'s "checkpoint": {"writer": {"type": "fast", "decoupled": true}}'
        if backend == "zero"
        else "torch.distributed.checkpoint.async_save"
    )
    evidence = (
        f"a training that saves every {every_s:,.0f} s waits {waiting_fraction:.1%} of its time for its checkpoints"
    )
    remedy = f"{alternative} writes while training goes on (not tried here), or save less often"
    if not _waits_for_disk(measured):
        return f"{evidence}: {remedy}"
    assert measured.disk is not None
    return f"{evidence}, {DISK_LIMITED}, which takes {measured.disk.write_bytes_per_s / _MB:,.0f} MB/s: {remedy}, or to a faster disk"


def _reached(measured: ResumeMeasurement) -> float:
    return measured.checkpoint_bytes / max(measured.save_s, 1e-9)


def _waits_for_disk(measured: ResumeMeasurement) -> bool:
    return measured.disk is not None and _reached(measured) >= _SLOW * measured.disk.write_bytes_per_s


def _slow(measured: ResumeMeasurement) -> str | None:
    if measured.disk is None or measured.save_s < _SHORT_S or _waits_for_disk(measured):
        return None
    evidence = f"saving reaches {_reached(measured) / _MB:,.0f} MB/s where one process writes {measured.disk.write_bytes_per_s / _MB:,.0f} MB/s to this disk"
    if measured.writing_ranks is None or measured.ranks is None or measured.writing_ranks == measured.ranks:
        return f"{evidence}: most of the time goes into collecting what is saved, not into writing"
    return f"{evidence}, and {measured.writing_ranks} of {measured.ranks} ranks write: let each rank write its part (torch.distributed.checkpoint)"

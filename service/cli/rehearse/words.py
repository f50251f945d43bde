"""Sentences about a rehearsal at a cluster's full number of ranks."""

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.formatting import counted, memory
from shardtune.api_schemas.trials.rehearsals import Rehearsal, RehearsedRank


def sentence(rehearsal: Rehearsal) -> str:
    """Describe a rehearsal (a build of the model without GPUs) in one sentence: whether the model builds, and how its
    memory compares with the prediction."""
    begin = f"rehearsed at {counted(rehearsal.ranks, 'rank')}: "
    if rehearsal.problem is not None and not rehearsal.builds:
        verb = "cannot be built" if rehearsal.problem.code == "misfit" else "was not rehearsed"
        return f"{begin}{verb} ({rehearsal.problem.code}): {rehearsal.problem.message}"
    assert rehearsal.allocated_gib is not None
    peak = f"{memory(rehearsal.allocated_gib)} allocated{_beside(rehearsal.above_prediction)}"
    if rehearsal.problem is not None:
        return f"{begin}builds and does not fit ({rehearsal.problem.code}): {peak}; {rehearsal.problem.message}"
    return f"{begin}builds; {peak}"


def _beside(above: float | None) -> str:
    if above is None:
        return ", not predicted"
    percent = round(100 * above)
    if percent == 0:
        return ", as predicted"
    return f", {abs(percent)} % {'above' if percent > 0 else 'below'} the prediction"


def details(rehearsal: Rehearsal) -> list[str]:
    """Return lines about a rehearsal (a build of the model without GPUs): how long process groups took to set up,
    whether memory was extrapolated to the model's full depth, and the memory of each rehearsed rank."""
    if not rehearsal.builds:
        return []
    result = [
        f"process groups of a rank: {rehearsal.process_groups}; set-up without communication: {rehearsal.set_up_s:.1f} s"
    ]
    if rehearsal.extended_from:
        depths = " and ".join(map(str, rehearsal.extended_from))
        result.append(f"a straight line from {depths} blocks on a rank to the model's own depth")
    return result + [_seen(one) for one in rehearsal.seen]


def _seen(one: RehearsedRank) -> str:
    parts = ", ".join(
        f"{name} {memory(size / GIB)}" for name, size in sorted(one.parts.items(), key=lambda part: -part[1])
    )
    return (
        f"rank {one.rank}, {counted(one.blocks, 'block')}: {memory(one.peak_bytes / GIB)} ({parts}); "
        f"{one.cpu_s:.0f} s of a core, {one.peak_rss_mib:.0f} MiB"
    )

"""Shares of projects in the fleet's retuning budget of a day: no project can use up what another one is entitled to."""

from collections.abc import Collection, Mapping


def left_of_fleet(
    limit: float, used: Mapping[str, float], project_id: str, entitled: Collection[str], day_left: float
) -> float:
    """GPU-seconds of the daily limit of all projects together that one project may still use for measuring
    recommendations again.

    Every entitled project has an equal share. At midnight, the unused shares of the other projects are reserved for
    them. During the day, the reserve shrinks evenly to nothing (`day_left`: 1 at midnight, 0 at the end), so that a
    project that measures alone can use the whole limit. A project can always use up its own share, whatever the other
    projects have used: their workers report that use, and may exaggerate it.
    """
    own, others = used.get(project_id, 0.0), {*entitled, *used} - {project_id}
    kept = day_left * limit / len({*entitled, project_id})
    taken = sum(max(used.get(other, 0.0), kept if other in entitled else 0.0) for other in others)
    return max(limit - own - taken, kept - own)

"""Sentences about the rehearsals in a study's projected answer."""

from collections.abc import Sequence

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.studies.target_rehearsals import TargetRehearsal
from shardtune.api_schemas.studies.targets import StudyProjection


def sentences(projection: StudyProjection) -> list[str]:
    """Return a sentence for each rehearsal (a build without GPUs at the target's number of ranks). If the answer was
    not rehearsed, a sentence says so."""
    texts = [_joined(alike) for alike in _alike(projection.rehearsals)]
    if projection.rehearsals and projection.rehearsal_of_answer is None:
        texts.append(
            f"{projection.answer.description} was not rehearsed, because {len(projection.rehearsals)} faster configurations "
            "were; run `shardtune rehearse` before a long training"
        )
    return texts


def _alike(rehearsals: Sequence[TargetRehearsal]) -> list[list[TargetRehearsal]]:
    """Group the rehearsals that did not run, by their reason; every other rehearsal is a group of its own."""
    groups: dict[object, list[TargetRehearsal]] = {}
    for number, one in enumerate(rehearsals):
        groups.setdefault(one.problem if one.outcome == "not_rehearsed" else number, []).append(one)
    return list(groups.values())


def _joined(alike: Sequence[TargetRehearsal]) -> str:
    first, problem = alike[0], alike[0].problem
    if len(alike) == 1 or problem is None:
        return sentence(first)
    names = " and ".join(one.description for one in alike)
    return f"{names}, at {first.ranks:,} ranks: were not rehearsed ({problem.code}): {problem.message}"


def sentence(rehearsal: TargetRehearsal) -> str:
    """Describe the result of a rehearsal: the peak memory of the built configuration, why the configuration was
    rejected, or why it was not rehearsed."""
    begin, problem = f"{rehearsal.description}, at {rehearsal.ranks:,} ranks:", rehearsal.problem
    if problem is None:
        return f"{begin} built and stepped in a rehearsal; {_peak(rehearsal)}"
    if problem.code == "over_memory" and rehearsal.available_gib is not None:
        return (
            f"{begin} rejected by its rehearsal, which needs more than the {memory(rehearsal.available_gib)} that a GPU may "
            f"use; {_peak(rehearsal)}"
        )
    verb = "cannot be built" if rehearsal.outcome == "rejected" else "was not rehearsed"
    return f"{begin} {verb} ({problem.code}): {problem.message}"


def _peak(rehearsal: TargetRehearsal) -> str:
    assert rehearsal.allocated_gib is not None
    allocated, foretold = rehearsal.allocated_gib, rehearsal.predicted_gib
    predicted = "" if foretold is None else f" (prediction {memory(foretold, allocated)})"
    peak = memory(allocated) if foretold is None else memory(allocated, foretold)
    without = ", rehearsed without compilation and not compared with the GPU" if rehearsal.without_compile else ""
    return f"peak {peak} of tensors{predicted}{without}"

"""Projection of a study to its target in words."""

from collections.abc import Sequence
from itertools import pairwise

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.formatting import counted, memory
from shardtune.api_schemas.studies.targets import BestAtSize, CurvePoint, ProjectedConfig, StudyProjection
from shardtune.service.wording import plan_words, study_words
from shardtune.service.wording.targets import confirmation_words, rehearsal_words

_UNSEEN = {
    "layout": "groups of another kind",
    "nodes": "the network between nodes",
    "uplinks": "the uplinks of leaf switches",
    "communication": "the exchange of gradients",
    "gpu": "the target's kind of GPU",
}


def rows(projection: StudyProjection) -> list[tuple[str, str]]:
    """Return rows about the answer for the target (the larger cluster that a study projects to). Each row has a label
    and a text; the label is empty in all rows but the first."""
    texts = [
        f"{size(projection)}, {confirmation_words.status(projection)}",
        *confirmation_words.sentences(projection),
        *(f"{place}. {describe(projection, config)}" for place, config in enumerate(ranked(projection), start=1)),
        *rehearsal_words.sentences(projection),
        order(projection),
        curve(projection),
        *strong_scaling(projection),
        *limits(projection),
        *take_overs(projection.sizes),
        *rung_test(projection),
        *assumptions(projection),
    ]
    return [("target" if at == 0 else "", text) for at, text in enumerate(texts)]


def ranked(projection: StudyProjection) -> tuple[ProjectedConfig, ...]:
    """Return the best configuration on the target cluster and its runners-up, fastest first."""
    return (projection.best, *projection.runners_up)


def assumptions(projection: StudyProjection) -> list[str]:
    """Return sentences about what the projection assumes without a measurement, and about configurations that it
    leaves out."""
    texts = []
    if scaled := scaling(projection.best):
        texts.append(scaled)
    if unseen := unseen_axes(ranked(projection)):
        texts.append(unseen)
    return [*texts, *left_out(projection), *projection.notes]


def size(projection: StudyProjection) -> str:
    """Describe the target cluster: its nodes, its GPUs and the global batch on it."""
    cluster = projection.cluster
    each = (
        counted(cluster.gpus_per_node, "CPU rank")
        if cluster.device == "cpu"
        else f"{cluster.gpus_per_node} × {cluster.gpu}"
    )
    return f"{counted(cluster.nodes, 'node')} of {each}, {counted(projection.global_batch, 'sample')} a step"


def describe(projection: StudyProjection, config: ProjectedConfig) -> str:
    """Describe a configuration with its projected speed, memory and chance to be the fastest on the target."""
    figures = f"{speed(config.tokens_per_s_per_gpu)} tokens/s/GPU, {peak(config.memory_gib)} allocated"
    chances = f"; {chance(config)} chance to be the fastest" if has_chances(projection) else ""
    whole = chance_of_trial(config) if chances else ""
    return (
        f"{config.description}: {figures}{', may not fit' if config.may_not_fit else ''}{chances} "
        f"(trial {config.trial_number}{f', {whole}' if whole else ''})"
    )


def has_chances(projection: StudyProjection) -> bool:
    """Whether more than one configuration was projected, so that each has a chance to be the fastest."""
    return projection.projected > 1


def speed(values: Band) -> str:
    """Format a speed with its 90 % band; a speed that was measured is shown without a band."""
    is_exact = values.low == values.high
    return study_words.rate(values.expected) if is_exact else plan_words.band(values, study_words.rate)


def peak(values: Band) -> str:
    """Format a peak of memory with its 90 % band, in one unit."""
    ends = (values.low, values.high)
    return plan_words.band(values, lambda gib: memory(gib, values.expected, *ends))


def chance(config: ProjectedConfig) -> str:
    """Format a configuration's chance to be the fastest, as a text from `below 1 %` to `99 %`, because no
    configuration is certain."""
    return _percent(config.chance_of_best)


def chance_of_trial(config: ProjectedConfig) -> str:
    """Describe the chance of a trial to be the fastest on the target in any of its forms, which differ in the process
    groups that grow with the cluster. Empty for a trial with one form."""
    whole = config.chance_of_trial
    is_shared = whole is not None and whole >= 0.01 and _percent(whole) != _percent(config.chance_of_best)
    return f"{_percent(whole)} in all its forms" if whole is not None and is_shared else ""


def _percent(share: float) -> str:
    return "below 1 %" if share < 0.01 else f"{min(share, 0.99):.0%}".replace("%", " %")


def order(projection: StudyProjection) -> str:
    """Say whether the fastest configuration on the target differs from the fastest one on the measured GPUs."""
    best, measured = projection.best, f"on the measured {measured_gpus(projection)}"
    if not projection.order_changes:
        return f"the same trial is the fastest {measured}"
    return f"the order changes: trial {best.trial_number} is number {best.rank_measured} {measured}"


def curve(projection: StudyProjection) -> str:
    """Describe how the best configuration's speed per GPU changes with the size of the cluster, with the same work for
    each rank. The sizes are the measured ones, numbers of nodes that are powers of two, and the target."""
    return f"tokens/s/GPU by size: {_points(projection.best.curve)}"


def measured_gpus(projection: StudyProjection) -> str:
    """Name the GPUs on which the study measured: their number, and their kind if the target has another one."""
    kind = projection.measured_gpu
    return _gpus(projection.measured_gpus) if kind is None else f"{projection.measured_gpus} × {kind}"


def strong_scaling(projection: StudyProjection) -> list[str]:
    """Describe how the best configuration's speed per GPU changes with the size of the cluster, with the target's global
    batch on every size; empty for answers of older releases."""
    if len(projection.strong_scaling) < 2:
        return []
    samples = counted(projection.global_batch, "sample")
    return [f"tokens/s/GPU with {samples} a step on every size: {_points(projection.strong_scaling)}"]


def _points(curve: Sequence[CurvePoint]) -> str:
    last = curve[-1]
    shown = [point for point in curve if point.evidence == "measured" or _is_power_of_two(point.nodes)]
    return "; ".join(
        f"{_gpus(point.gpus)} {speed(point.tokens_per_s_per_gpu)}{' measured' if point.evidence == 'measured' else ''}"
        for point in (*shown, *([] if last in shown else [last]))
    )


def limits(projection: StudyProjection) -> list[str]:
    """Say where the best configuration's curve bends, and what limits its speed on the target; empty for answers of
    older releases."""
    best = projection.best
    if best.bound_by is None:
        return []
    first = "measured" if projection.measured_gpu is None else f"projected for {_gpus(best.curve[0].gpus)}"
    bend = (
        f"no size up to the target loses more than a tenth of the speed per GPU {first}"
        if best.bends_at_gpus is None
        else f"the curve bends at {_gpus(best.bends_at_gpus)}: speed per GPU is more than a tenth below that {first}"
    )
    text = f"predicted to be limited by {best.bound_by} at the target"
    there, here = best.exposed_communication_fraction, best.study_exposed_communication_fraction
    if there is not None and here is not None:
        text += (
            f"; GPUs wait for communication in {_share(there)} of a step there, in {_share(here)} of one on "
            f"{measured_gpus(projection)}"
        )
    return [bend, text]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def take_overs(sizes: Sequence[BestAtSize]) -> list[str]:
    """Say for each change of the fastest trial from which number of GPUs on the new one is the fastest."""
    pairs = pairwise(sizes)
    return [
        f"from {after.gpus} GPUs on, trial {after.trial_number} is the fastest: {after.description}"
        for before, after in pairs
        if before.trial_number != after.trial_number
    ]


def scaling(config: ProjectedConfig) -> str:
    """Say which fields of a configuration, such as sizes of process groups, have other values on the target cluster
    than in the measured trial."""
    fields = ", ".join(f"{item.field} {item.measured} → {item.target}" for item in config.scaled)
    return f"predicted, not measured: {fields}" if fields else ""


def unseen_axes(configs: Sequence[ProjectedConfig]) -> str:
    """Say which effects, such as communication between nodes, could not be measured on the study's GPUs, so that the
    bands of the projection are wider."""
    axes = dict.fromkeys(axis for config in configs for axis in config.unseen)
    names = " and ".join(_UNSEEN[axis] for axis in axes)
    return f"bands are wider for what was never measured: {names}" if names else ""


def rung_test(projection: StudyProjection) -> list[str]:
    """Describe a projection's test on smaller clusters (rungs): how well runs on them predicted the study's measured
    speeds, and how much the result widens the bands."""
    test = projection.rung_test
    if test is None:
        return []
    count = len(test.trials)
    from_gpus = " and ".join(str(gpus) for gpus in test.from_gpus)
    texts = [
        f"rung test: {from_gpus} GPU{'s' if test.from_gpus != (1,) else ''} foretold {count} trial{'s' if count > 1 else ''} "
        f"of {measured_gpus(projection)} with a median error of {_share(test.median_error)} "
        f"(largest {_share(test.largest_error)}); {test.inside_band} of {count} within the 90 % band"
    ]
    if test.band_factor > 1.0:
        texts.append(
            f"bands to the target are {test.band_factor:.1f} times as wide as published runs ask for, since trials lay "
            "outside of theirs"
        )
    return texts


def _share(fraction: float) -> str:
    return f"{fraction:.1%}".replace("%", " %")


def left_out(projection: StudyProjection) -> list[str]:
    """Count the configurations that the projection leaves out, and give the reasons."""
    texts = []
    if count := projection.only_at_target:
        texts.append(
            f"{count} configuration{'s fit' if count > 1 else ' fits'} only at the target; "
            f"{'they were' if count > 1 else 'it was'} not measured"
        )
    if count := len(projection.without_layout):
        fastest = projection.without_layout[0]
        is_best_here = any(row.evidence == "measured" and row.trial_number == fastest for row in projection.sizes)
        texts.append(
            f"{count} measured configuration{'s' if count > 1 else ''} cannot be laid out on the target's ranks"
            f"{f' (trial {fastest} was the fastest here)' if is_best_here else ''}"
        )
    if count := projection.too_large:
        texts.append(f"{count} measured configuration{'s' if count > 1 else ''} should not fit at the target")
    return texts

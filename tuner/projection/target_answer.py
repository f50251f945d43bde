"""Answer of a study for its target: each measured configuration projected, and which of them is the fastest there."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines import networks
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.rung_tests import RungTest
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.targets import CurvePoint, ProjectedConfig, StudyProjection
from shardtune.tuner.objective import available_gib
from shardtune.tuner.projection import gpu_kinds, rung_speeds, rung_test, rungs
from shardtune.tuner.projection.chances import ProjectedSpeed, chances_of_best
from shardtune.tuner.projection.rung_test import Rung, RungAnchors
from shardtune.tuner.projection.structural import StructuralError
from shardtune.tuner.projection.surrogates import growths, scaled_fields
from shardtune.tuner.projection.target_curves import Curves, bend
from shardtune.tuner.projection.target_rows import OnTarget, distinct, grown_configs, project_all
from shardtune.tuner.projection.target_sizes import TargetSizes

_RUNNERS_UP = 4
"""Number of configurations that an answer lists besides the best."""


@dataclass(frozen=True)
class ProjectedTrials:
    """Each measured configuration of a study, projected to its target."""

    sizes: TargetSizes
    measured: Sequence[Contender]
    rows: Sequence[OnTarget]
    """Projected configurations, each once."""
    without_layout: frozenset[int]
    """Numbers of trials whose configurations cannot be scaled to the target's ranks."""
    only_at_target: int
    """Number of configurations that did not fit on the study's cluster, and are predicted to fit on the target."""
    rung_test: RungTest | None
    error: StructuralError
    left_out: tuple[str, ...] = ()
    """Sentences for the user about trials of smaller clusters whose speeds are impossible, and which were left out."""


def project_trials(
    sizes: TargetSizes,
    measured: Sequence[Contender],
    not_fitting: Sequence[TrialConfig],
    smaller: Sequence[Rung] = (),
) -> ProjectedTrials:
    """Project the trials of a study to its target.

    `measured`: feasible trials of the study. `not_fitting`: configurations that did not fit on its cluster, by
    prediction or by a run. `smaller`: smaller clusters on which earlier studies measured configurations, with the same
    work for each rank.
    """
    believed = rung_speeds.believable(sizes, smaller)
    anchors = RungAnchors(sizes, believed.rungs)
    test = rung_test.run(sizes, anchors, measured)
    error = rung_test.error_after(test)
    laid_out = project_all(sizes, grown_configs(sizes, measured, anchors), sizes.there, error)
    return ProjectedTrials(
        sizes=sizes,
        measured=measured,
        rows=distinct(laid_out),
        without_layout=frozenset(
            {contender.trial_number for contender in measured} - {row.grown.contender.trial_number for row in laid_out}
        ),
        only_at_target=_count_fitting(sizes, not_fitting, sizes.there),
        rung_test=test,
        error=error,
        left_out=believed.notes,
    )


def answer(trials: ProjectedTrials, rejected: Collection[str] = ()) -> StudyProjection:
    """Answer which configuration is projected to be the fastest on a study's target. `rejected`: content keys (hashes)
    of configurations that a rehearsal (a step without GPUs) showed not to train there.

    Raises:
        ValueError: no measured configuration can run on the target, or is predicted to fit there.
    """
    sizes, there = trials.sizes, trials.sizes.there
    fitting = _fitting(trials, rejected)
    ranks = _ranks(trials.measured)
    curves = Curves(sizes, fitting, ranks, trials.error)
    shown = [
        _described(sizes, row, chances, ranks[row.grown.contender.trial_number], curves.of(row))
        for row, chances in zip(fitting[: 1 + _RUNNERS_UP], _chances(fitting), strict=False)
    ]
    trials_that_fit = {row.grown.contender.trial_number for row in trials.rows if row.fits}
    return StudyProjection(
        cluster=there,
        global_batch=sizes.global_batch(there),
        measured_gpus=sizes.cluster.world_size,
        measured_gpu=gpu_kinds.kind_of(sizes.cluster.gpu) if sizes.has_other_gpus else None,
        doublings=fitting[0].projection.doublings,
        best=shown[0],
        runners_up=tuple(shown[1:]),
        order_changes=shown[0].rank_measured > 1,
        sizes=curves.best_of_each_size(min(trials.measured, key=lambda row: ranks[row.trial_number])),
        strong_scaling=curves.strong_scaling(fitting[0]),
        projected=len(fitting),
        only_at_target=trials.only_at_target,
        without_layout=tuple(sorted(trials.without_layout, key=ranks.__getitem__)),
        too_large=len({row.grown.contender.trial_number for row in trials.rows} - trials_that_fit),
        notes=(*_notes(sizes, there), *trials.left_out),
        rung_test=trials.rung_test,
    )


def _fitting(trials: ProjectedTrials, rejected: Collection[str]) -> list[OnTarget]:
    """Projected configurations that fit on the target and that no rehearsal (a step without GPUs) rejected, fastest
    first."""
    fitting = [row for row in trials.rows if row.fits and row.config.content_key() not in rejected]
    if not fitting:
        there = trials.sizes.there
        raise ValueError(
            f"none of {len(trials.measured)} measured configurations can run on {there.nodes} nodes × "
            f"{there.gpus_per_node} GPUs; choose a global_batch that more of them divide, or larger GPUs"
        )
    return sorted(fitting, key=lambda row: -row.expected)


def _chances(fitting: Sequence[OnTarget]) -> list[tuple[float, float]]:
    """Chances of each configuration to be the fastest on the target: its own, and the sum over all configurations that
    were projected from its trial."""
    chances = chances_of_best(
        [
            ProjectedSpeed(row.grown.contender.trial_number, row.expected, row.projection.tokens_per_s_per_gpu.high)
            for row in fitting
        ]
    )
    of_trials: dict[int, float] = defaultdict(float)
    for row, chance in zip(fitting, chances, strict=True):
        of_trials[row.grown.contender.trial_number] += chance
    return [(chance, of_trials[row.grown.contender.trial_number]) for row, chance in zip(fitting, chances, strict=True)]


def _ranks(contenders: Sequence[Contender]) -> dict[int, int]:
    """Rank of each trial by measured speed, counted from 1, by trial number."""
    speeds = {contender.trial_number: contender.tokens_per_s_per_gpu for contender in contenders}
    ordered = sorted(speeds, key=lambda number: -speeds[number])
    return {number: place for place, number in enumerate(ordered, start=1)}


def _described(
    sizes: TargetSizes, row: OnTarget, chances: tuple[float, float], rank: int, curve: tuple[CurvePoint, ...]
) -> ProjectedConfig:
    """Describe a projected configuration for the answer. `chances`: the chance that it is the fastest, and the chance
    that any configuration projected from the same trial is."""
    contender, projection = row.grown.contender, row.projection
    here, there = row.grown.anchor.predicted, row.predicted
    return ProjectedConfig(
        trial_number=contender.trial_number,
        config=row.config,
        description=row.config.describe(),
        scaled=scaled_fields(contender.config, row.config),
        measured_tokens_per_s_per_gpu=contender.tokens_per_s_per_gpu,
        tokens_per_s_per_gpu=projection.tokens_per_s_per_gpu.band,
        memory_gib=projection.memory_gib.band,
        may_not_fit=projection.memory_gib.high > available_gib(sizes.there, sizes.objective),
        chance_of_best=round(chances[0], 3),
        chance_of_trial=round(chances[1], 3),
        rank_measured=rank,
        unseen=projection.unseen,
        curve=curve,
        bends_at_gpus=bend(curve),
        bound_by=there.bound_by,
        exposed_communication_fraction=round(there.communication_fraction, 3),
        study_exposed_communication_fraction=round(here.communication_fraction, 3),
    )


def _count_fitting(sizes: TargetSizes, configs: Sequence[TrialConfig], there: Cluster) -> int:
    """Number of configurations that did not fit on the study's cluster, and are predicted to need less memory on the
    target and to fit there.
    """
    different = list({config.content_key(): config for config in configs}.values())
    # One that ran out of memory although it should fit would need as much on the target.
    here = sizes.predict(different, sizes.cluster)
    grown = [
        (config, at_target)
        for config, size in zip(different, here, strict=True)
        if not size.fits
        for growth in growths(config, sizes.cluster, there)
        if (at_target := growth.at(there.world_size)) is not None
    ]
    predicted = sizes.predict([at_target for _, at_target in grown], there)
    return len({config.content_key() for (config, _), size in zip(grown, predicted, strict=True) if size.fits})


def _notes(sizes: TargetSizes, there: Cluster) -> tuple[str, ...]:
    here = sizes.cluster
    notes = [
        f"the same work for each rank: {counted(sizes.workload.global_batch, 'sample')} a step on "
        f"{counted(here.world_size, 'rank')}, "
        f"{sizes.global_batch(there)} on {there.world_size}"
    ]
    if sizes.has_other_gpus:
        notes += _kind_notes(sizes, there)
    elif there.nodes > 1 and here.nodes == 1:
        notes.append(_network_note(sizes, there))
    if there.nodes > 1:
        leaves = networks.leaf_switches_note(there.nodes_per_leaf, there.oversubscription)
        notes += [] if leaves is None else [leaves]
    if sizes.workload.data is not None:
        notes.append("samples of several lengths: the speed counts their own tokens, as mixed on the study's cluster")
    return tuple(notes)


def _kind_notes(sizes: TargetSizes, there: Cluster) -> list[str]:
    """Notes on a target with another kind of GPU."""
    measured, target = gpu_kinds.kind_of(sizes.cluster.gpu), there.gpu
    notes = [
        f"measured on {measured}: speeds on {target} are the measured ones times the ratio of the speeds predicted on both",
        "the band between kinds of GPU was learnt from published runs on A100 and H100 alone",
        f"memory of {target} by the catalogue; hosts as the study's, with {there.host_memory_gib:g} GiB a node",
    ]
    if there.nodes > 1:
        source = "as stated" if sizes.target.inter_node_gb_per_s else "by the catalogue"
        notes.append(f"the network between nodes was not measured: {there.inter_node_gb_per_s:g} GB/s a node {source}")
    return notes


def _network_note(sizes: TargetSizes, there: Cluster) -> str:
    if rungs.has_measured_network(sizes.hardware):
        return "the network between nodes was measured alone, never under training"
    if there.device == "cpu":
        return "the network between nodes is a guess, as CPU ranks have gloo's: run the study over two nodes"
    if there.inter_node_gb_per_s is None:
        return "the network between nodes is a guess: state target.inter_node_gb_per_s, or run the study over two nodes"
    source = (
        "as stated" if sizes.target.inter_node_gb_per_s or sizes.cluster.inter_node_gb_per_s else "by the catalogue"
    )
    return (
        f"the network between nodes was not measured: {there.inter_node_gb_per_s:g} GB/s a node {source}; run the study over "
        "two nodes"
    )

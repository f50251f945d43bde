"""Derive the study on a smaller size, for `tune --rungs`: the same work for each rank on fewer ranks or nodes."""

from collections.abc import Callable
from dataclasses import replace

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import Target
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import early_checks
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.http.errors import Invalid
from shardtune.service.studies.choose_precision import stated_precision

_FOLDER = "rungs"
"""Name of the folder below `--out` that holds the files of the studies on the smaller clusters of `--rungs`."""


def options_on(size: int, whole: TuneOptions) -> TuneOptions:
    """Return the command's options, changed so that the study runs on a smaller cluster of `--rungs`."""
    smaller = replace(whole, rung=size, out=whole.out / _FOLDER / str(size), as_json=False)
    if not whole.hosts:
        return replace(smaller, ranks=size)
    kept = list(whole.hosts)
    if "--nodes" in kept:
        del kept[kept.index("--nodes") : kept.index("--nodes") + 2]
    return replace(smaller, hosts=(*kept, "--nodes", str(size)))


def with_complete_target(spec: StudyRequest, whole: TuneOptions) -> StudyRequest:
    """Return the study for the full cluster, with a target (the larger cluster to project to) that stays the same on
    each smaller cluster of `--rungs`.

    A target without GPUs per node would take their number from the study's cluster, which has fewer on a smaller
    number of ranks; therefore the target gets the number of the full cluster.

    Raises:
        InputError: the study has no target to project to; the target is no larger than the full-size study; or
        `--nodes` or `--ranks` is not the size of the study's cluster.
    """
    shown = ",".join(map(str, whole.rungs))
    target = spec.target
    if target is None:
        raise InputError(
            f"--rungs ({shown}) needs a target to project to; add --target NODESxGPUS, or target in the study file"
        )
    _check_cluster(spec, whole)
    if whole.hosts:
        _check_is_larger(target, ("--nodes", whole.nodes or 1, None))
        return spec
    complete = target.model_copy(update={"gpus_per_node": target.gpus_per_node or whole.ranks})
    _check_is_larger(complete, ("--ranks", 1, whole.ranks), target.short_form)
    return spec.model_copy(update={"target": complete})


def _check_is_larger(target: Target, here: tuple[str, int, int | None], shown: str | None = None) -> None:
    """Reject a target that has no more nodes or GPUs than the study's own cluster, before the study runs on the
    smaller clusters of `--rungs`. As many GPUs of a named kind may be of another kind, which the service checks.

    `here`: the option that sets the size of the study's own cluster, followed by its number of nodes and GPUs per node
    (None if unknown). `shown`: short form of the target as the user wrote it.
    """
    option, nodes, per_node = here
    is_same = (target.nodes, target.gpus_per_node) == (nodes, per_node) and target.gpu is None
    if is_same or target.nodes < nodes or (target.gpus_per_node or 1) < (per_node or 1):
        raise InputError(
            f"target ({shown or target.short_form}) must be larger than the study's own size, "
            f"{option} ({nodes if per_node is None else per_node}); name more nodes, or larger ones"
        )


def _check_cluster(spec: StudyRequest, whole: TuneOptions) -> None:
    """Reject a study whose cluster has another size than `--nodes` or `--ranks`, before the study runs on the smaller
    clusters of `--rungs`."""
    if spec.cluster == "local":
        return
    try:
        cluster = early_checks.expected_cluster(spec, None)
    except Invalid as error:
        raise early_checks.as_input_error(error) from None
    if cluster is None:
        return
    option, stated = ("--nodes", whole.nodes) if whole.hosts else ("--ranks", whole.ranks)
    size, unit = (cluster.nodes, "node") if whole.hosts else (cluster.world_size, "rank")
    if stated != size:
        shown = spec.cluster if isinstance(spec.cluster, str) else f"{cluster.nodes} × {cluster.gpus_per_node}"
        raise InputError(
            f"{option} ({stated}) must be the size of the study's cluster ({shown}), which has "
            f"{counted(size, unit)}; give {option} {size}, or another cluster in the study file"
        )


def study_on(size: int, spec: StudyRequest, options: TuneOptions, say: Callable[[str], None]) -> StudyRequest:
    """Return the study for a smaller cluster that is a part of the same hosts, without a sustained run (the long run after
    the verdict): only the answer of the full cluster is for long trainings.

    A baseline that is not possible on the smaller cluster, such as one that shards over more ranks, is left out; `say`
    receives the reason.

    Raises:
        InputError: the study is not possible on this size.
    """
    budget = spec.budget.model_copy(update={"sustained_run_s": 0.0})
    smaller = spec.model_copy(update={"cluster": _smaller_cluster(spec, size, bool(options.hosts)), "budget": budget})
    if options.hosts and smaller.cluster == "local":
        return smaller
    try:
        early_checks.check_study(smaller, options.ranks)
    except InputError as error:
        plain = _without_baseline(smaller)
        if plain is None:
            raise
        early_checks.check_study(plain, options.ranks)
        say(f"the baseline is left out on {counted(size, options.unit)}: {error}")
        return plain
    return smaller


def _without_baseline(spec: StudyRequest) -> StudyRequest | None:
    """Return the study without its baseline, but in the precision that the baseline states; None if the study has no
    baseline."""
    if spec.baseline is None:
        return None
    precision, _ = stated_precision(spec)
    workload = spec.workload.model_copy(update={"precision": precision})
    return spec.model_copy(update={"baseline": None, "workload": workload})


def _smaller_cluster(spec: StudyRequest, size: int, over_hosts: bool) -> Cluster | str:
    if isinstance(spec.cluster, Cluster):
        return spec.cluster.model_copy(update={"nodes": size} if over_hosts else {"nodes": 1, "gpus_per_node": size})
    if spec.cluster == "local":
        return spec.cluster
    named = early_checks.expected_cluster(spec, None)
    assert named is not None, "a cluster with a name is known"
    # The short form again: the worker that has these GPUs completes it.
    return f"{size}x{named.gpus_per_node}x{named.gpu}" if over_hosts else f"1x{size}x{named.gpu}"

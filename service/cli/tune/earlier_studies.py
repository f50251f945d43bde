"""Find the stored study that `tune --rungs` would only repeat: given again after an interruption, the command goes on."""

import os
from collections.abc import Callable
from typing import Any

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.cli import local_stack
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.client import ServiceClient
from shardtune.service.http.errors import Invalid
from shardtune.service.studies.choose_precision import stated_precision
from shardtune.service.workers import target_rungs
from shardtune.tuner.freshness.fingerprints import stale_fields

_WAITS: dict[str, Any] = {"wait_for_quiet_s": True, "wait_for_worker_s": True}
"""Fields of a study that decide when its runs start, but not what they measure. Two studies that differ only in these
fields count as the same."""
_SUSTAINED_RUN: dict[str, Any] = {"budget": {"sustained_run_s"}}
"""Field of a study that decides about one run after its verdict. Smaller clusters of `--rungs` need none, and a study that
made it measured all that they need."""


def find(client: ServiceClient, spec: StudyRequest, options: TuneOptions) -> Study | None:
    """Return the newest stored study with the same specification and cluster size that `tune --rungs` can use again:
    an unfinished study or, on one of the smaller clusters, a study with an answer. None without `--rungs`.

    A finished study of the full cluster is not reused: the command's answer is about this cluster, which it measures
    anew.
    """
    # In a shared database another job may be at work on that study.
    if not options.rungs or local_stack.DATABASE_VARIABLE in os.environ:
        return None
    same = [
        study
        for study in client.studies()
        if (study.state.is_open or (options.rung is not None and study.result is not None))
        and _has_size(study.cluster, options)
        and has_specification(study, spec, is_rung=options.rung is not None)
    ]
    # What has ended counts more than a later repetition of it that was cut short.
    return max(same, key=lambda study: (not study.state.is_open, study.created_at), default=None)


def if_comparable(
    client: ServiceClient, study: Study, worker_name: str, options: TuneOptions, say: Callable[[str], None]
) -> Study | None:
    """Return the study and say that it is used again, if its measurements are comparable with new ones of the worker.
    Otherwise pause it if it is unfinished, say why it is not used, and return None."""
    size = study.cluster.nodes if options.hosts else study.cluster.world_size
    where = f"on {counted(size, options.unit)}"
    changed = _changed_since(client, study, worker_name)
    if changed is None:
        if study.state.is_open:
            say(f"study {study.study_id} {where} is unfinished and goes on")
        else:
            say(
                f"study {study.study_id} of {study.created_at:%Y-%m-%d %H:%M} UTC measured the same {where} and is used "
                "again; another --state-dir measures anew"
            )
        return study
    if study.state.is_open:
        client.pause(study.study_id, paused=True)
    say(f"study {study.study_id} {where} does not compare with new runs and is not used: other {changed}")
    return None


def _changed_since(client: ServiceClient, study: Study, worker_name: str) -> str | None:
    """Return what has changed on this machine since the study ran, such as `torch`. None means that nothing has
    changed, so that the study's measurements are comparable with new ones."""
    live = (worker.inventory for worker in client.workers() if worker.name == worker_name and worker.is_live)
    inventory = next(live, None)
    if inventory is None or study.fingerprint is None:
        return None
    changed = stale_fields(study.fingerprint, inventory.fingerprint, study.cluster.nodes)
    now = inventory.cluster.memory_gib
    # The fingerprint has the host's memory and cores, which --memory-gib and --ranks leave as they are.
    is_other_limit = study.cluster.device == "cpu" and abs(study.cluster.memory_gib - now) > 0.02 * now
    are_other_ranks = study.spec.cluster == "local" and study.cluster.gpus_per_node != inventory.cluster.gpus_per_node
    limits = [("memory of a rank", is_other_limit), ("number of ranks of a node", are_other_ranks)]
    return ", ".join([*changed, *(name for name, is_other in limits if is_other)]) or None


def has_specification(study: Study, spec: StudyRequest, *, is_rung: bool) -> bool:
    """Whether this request, on the stored study's cluster, would give a study with the same specification as the
    stored one. `is_rung`: the cluster is one of the smaller ones of `--rungs`."""
    try:
        fitted = target_rungs.on_rung(spec, study.cluster, has_worker=False)
        stated, _ = stated_precision(fitted)
        expected = fitted.with_precision(stated or study.spec.workload.precision).with_possible_backends()
    except (Invalid, ValueError):
        return False
    left_out = _WAITS | _SUSTAINED_RUN if is_rung else _WAITS
    return expected.model_dump(mode="json", exclude=left_out) == study.spec.model_dump(mode="json", exclude=left_out)


def _has_size(cluster: Cluster, options: TuneOptions) -> bool:
    if options.hosts:
        return cluster.nodes == options.nodes
    return (cluster.nodes, cluster.gpus_per_node) == (1, options.ranks)

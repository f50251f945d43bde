"""Whose turn it is on a host that several workers share.

Note [host turns]: runs go side by side where they have no device and no link of their collectives in common. A run that
decides something has the host alone: it begins where nothing runs, and beside it nothing begins. All of it is seen and
written in the transaction that gives the run out, which holds the host, so that two replicas never decide at once. Who is
rejected waits in the open: who waits for longer, and before them those who are to be alone, come first. A worker that was
given a run to be alone with keeps its place until it asks and there is no further one: the runs of a pair follow each other.
"""

from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.host_partition import HostPartition, HostWait
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db import hosts
from shardtune.db.hosts import CoTenant
from shardtune.db.tables.studies import RunRow, StudyRow, WorkerRow
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.process.context import Context

_SILENT = timedelta(seconds=45)
"""A worker that waits asks at least every few seconds, which is written down every 15; one that was not heard of for so long
keeps no place."""

Told = TypeVar("Told", Measurement, Failure)


def is_alone(purpose: RunPurpose, system_study: SystemStudy | None) -> bool:
    """Whether a run decides something, or is looked at closely: validation runs, resume checks, traces, canaries, challenges."""
    is_search = system_study is None or system_study.kind == SystemStudyKind.SEARCH
    return not is_search or purpose not in (RunPurpose.MODEL_SUMMARY, RunPurpose.SEARCH)


def admits(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> bool:
    """Whether a waiting run may begin on a worker of a shared host; else the worker waits from here on.

    The caller holds the study, and gives the run out in this transaction.
    """
    assert worker.host_id is not None and worker.offer.share is not None
    hosts.hold(session, worker.host_id)
    now, alone = context.now(), is_alone(run.purpose, study.system_study)
    known = worker.waits if worker.waits is not None and worker.waits.is_alone == alone else None
    mine = known or HostWait(since=now, is_alone=alone)
    others = [
        one if now - one.seen_at < _SILENT else replace(one, waits=None) for one in hosts.neighbours(session, worker)
    ]
    is_free = not any(is_in_the_way(worker.offer.share, mine, other) for other in others)
    worker.waits = mine if alone or not is_free else None
    return is_free


def is_in_the_way(share: HostPartition, wanted: HostWait, other: CoTenant) -> bool:
    """Whether a run on a share of a host has to wait for what another worker of the host runs, or waits for."""
    if other.purpose is not None:
        others_alone = is_alone(other.purpose, other.system_study)
        return others_alone or wanted.is_alone or share.meets(other.share)
    if other.waits is None:
        return False
    comes_first = (not other.waits.is_alone, other.waits.since) < (not wanted.is_alone, wanted.since)
    return comes_first and (other.waits.is_alone or share.meets(other.share))


def with_neighbours(session: Session, run: RunRow, ended: JudgedEnd) -> JudgedEnd:
    """An end with the number of workers that ran something beside it on its host. The caller holds the run."""
    count = hosts.ran_meanwhile(session, run) if run.host_id is not None else 0
    if not count:
        return ended
    return replace(ended, measurement=_beside(ended.measurement, count), failure=_beside(ended.failure, count))


def _beside(told: Told | None, count: int) -> Told | None:
    if told is None:
        return None
    conditions = (told.conditions or Conditions()).model_copy(update={"neighbours": count})
    return told.model_copy(update={"conditions": conditions})

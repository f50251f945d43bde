"""What is dear to make for planning, kept; and a lock on asking per study, in the process and among replicas:
sampling twice from the same history would only be thrown away.

The study's version decides what counts; these locks save work, they do not protect anything.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import StudySpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.db.queries import studies
from shardtune.db.session import Database
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.prediction.calibration import Calibrations
from shardtune.tuner.prediction.learning import ComparedRun, learn
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.space import Space

Kept = TypeVar("Kept")

_IDLE_S = 5.0
"""A plan to wait is believed for this long: a budget in seconds may run out without a change of the study."""
_MOST_SPACES = 64
_MOST_POOLS = 16
"""Up to ten MB each."""
_MOST_SNAPSHOTS = 64
_MOST_IDLE = 1024


@dataclass(frozen=True)
class Learnt:
    """From runs on one fingerprint."""

    run_ids: Sequence[str]
    runs: Mapping[str, ComparedRun | None]
    """None: it teaches nothing."""
    calibrations: Calibrations

    @property
    def known(self) -> tuple[ComparedRun, ...]:
        """Those that teach something, the newest first."""
        return tuple(run for run in self.runs.values() if run is not None)


@dataclass(frozen=True)
class Subject:
    """What a study measures, which is known for good once its model has been profiled."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    profiled_for: str | None
    """The only project that may believe the profile; None: every one."""


class PlannerCache:
    """A lock per study, and what is dear to make: the spaces, which never change once the profile is known, the
    calibrations, which change with every measured run, and the snapshots of studies, each good for one version."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._spaces: dict[str, Space] = {}
        self._pools: dict[str, tuple[str, Pool]] = {}
        self._specs: dict[str, StudySpec] = {}
        self._idle: dict[str, tuple[int, float]] = {}
        self._cores: dict[str, int] = {}
        self._learnt: dict[str, Learnt] = {}
        self._snapshots: dict[str, StudySnapshot] = {}
        self._begun: dict[str, str] = {}
        self._subjects: dict[str, Subject] = {}

    @contextmanager
    def ask_lock(self, study_id: str, database: Database, patience_s: float) -> Iterator[bool]:
        """Hold the study's lock for asking what comes next; False when it was not free so long."""
        with self._guard:
            lock = self._locks.setdefault(study_id, threading.Lock())
        if not lock.acquire(timeout=patience_s):
            yield False
            return
        try:
            with database.sole(f"ask {study_id}", patience_s) as sole:
                yield sole
        finally:
            lock.release()

    def note_idle(self, study_id: str, version: int) -> None:
        """At this version the study has nothing for anybody."""
        with self._guard:
            while len(self._idle) >= _MOST_IDLE:
                self._idle.pop(next(iter(self._idle)))
            self._idle[study_id] = (version, time.monotonic())

    def is_idle(self, study_id: str, version: int) -> bool:
        """Whether looking again would find nothing: 200 workers cost one look at a study, not 200."""
        known, at_s = self._idle.get(study_id, (-1, 0.0))
        return known == version and time.monotonic() - at_s < _IDLE_S

    def note_begun(self, worker_session: str, study_id: str) -> None:
        """In this study waits the next run of a block that the worker began."""
        self._keep(self._begun, worker_session, study_id, _MOST_IDLE)

    def take_begun(self, worker_session: str) -> str | None:
        """Such a study, told once; None where none is known here."""
        return self._begun.pop(worker_session, None)

    def cores(self, fingerprint_key: str, read: Callable[[], int]) -> int:
        """Of the machine under a fingerprint, which is named by its content and so never another."""
        known = self._cores.get(fingerprint_key)
        if known is None:
            known = read()
            self._keep(self._cores, fingerprint_key, known, _MOST_IDLE)
        return known

    def subject(self, study_id: str, read: Callable[[], Subject | None]) -> Subject | None:
        """What a study measures; read until it is known."""
        known = self._subjects.get(study_id)
        if known is None and (known := read()) is not None:
            self._keep(self._subjects, study_id, known, _MOST_IDLE)
        return known

    def space(self, study_id: str, build: Callable[[], Space]) -> Space:
        """The study's space, built on first use."""
        space = self._spaces.get(study_id)
        if space is None:
            space = build()
            self._keep(self._spaces, study_id, space, _MOST_SPACES)
        return space

    def pool(self, study_id: str, state: str, build: Callable[[], Pool]) -> Pool:
        """The candidates of a study with their predictions, made anew when the hardware's rates have been measured."""
        known = self._pools.get(study_id)
        if known is None or known[0] != state:
            known = (state, build())
            self._keep(self._pools, study_id, known, _MOST_POOLS)
        return known[1]

    def give_specs(self, session: Session, rows: Sequence[StudyRow]) -> None:
        """Say what studies are about without reading it again: but for its budget, that never changes."""
        studies.read_specs(session, [row for row in rows if row.id not in self._specs])
        with self._guard:
            for row in rows:
                if row.id in self._specs:
                    set_committed_value(row, "spec", self._specs[row.id])
                else:
                    self._specs[row.id] = row.spec
            while len(self._specs) > _MOST_IDLE:
                self._specs.pop(next(iter(self._specs)))

    def snapshot(self, study_id: str, version: int) -> StudySnapshot | None:
        """What is known of the study at this version; which of its runs wait and run may have changed since."""
        known = self._snapshots.get(study_id)
        return known if known is not None and known.version == version else None

    def keep_snapshot(self, seen: StudySnapshot) -> None:
        """For whoever takes the study's next step in this process."""
        with self._guard:
            self._snapshots.pop(seen.study_id, None)
            while len(self._snapshots) >= _MOST_SNAPSHOTS:
                self._snapshots.pop(next(iter(self._snapshots)))
            self._snapshots[seen.study_id] = seen

    def learnt(
        self, name: str, run_ids: Sequence[str], compare: Callable[[Sequence[str]], Mapping[str, ComparedRun]]
    ) -> Learnt:
        """Learnt from these runs, of which only those are compared that were not yet. `name` tells what they share."""
        known = self._learnt.get(name)
        if known is None or known.run_ids != run_ids:
            before = known.runs if known is not None else {}
            unknown = [run_id for run_id in run_ids if run_id not in before]
            new = compare(unknown) if unknown else {}
            runs = {run_id: before[run_id] if run_id in before else new.get(run_id) for run_id in run_ids}
            known = Learnt(run_ids, runs, learn(run for run in runs.values() if run is not None))
            self._keep(self._learnt, name, known, _MOST_SPACES)
        return known

    def _keep(self, kept: dict[str, Kept], name: str, value: Kept, most: int) -> None:
        """In the place of the oldest, where there are as many as may be."""
        with self._guard:
            while len(kept) >= most:
                kept.pop(next(iter(kept)))
            kept[name] = value

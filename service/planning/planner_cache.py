"""Cache of planning data that is expensive to compute, and a lock per study (ask lock) under which one thread or
replica at a time plans the study's next step.

The study's version decides what is valid. The locks only save work: sampling twice from the same history would be
thrown away.
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
from shardtune.api_schemas.studies.study_request import StudySpec
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

CachedValue = TypeVar("CachedValue")

# A budget in seconds may run out without any change of the study, so the entry must expire by itself.
_IDLE_S = 5.0
"""Seconds for which a planner's decision that a study has nothing to do is used again, instead of planning anew."""
_MAX_SPACES = 64
_MAX_POOLS = 16
"""Maximum number of cached pools of candidate configurations, one for each study; a pool takes up to 10 MB."""
_MAX_SNAPSHOTS = 64
_MAX_ENTRIES = 1024


@dataclass(frozen=True)
class CalibratedRuns:
    """Runs that were measured on one fingerprint (hardware and software versions), and the predictor's corrections
    that were fitted to them.
    """

    run_ids: Sequence[str]
    runs: Mapping[str, ComparedRun | None]
    """Each run with its prediction, by run id. A value is None if the run is not useful for calibration."""
    calibrations: Calibrations

    @property
    def informative_runs(self) -> tuple[ComparedRun, ...]:
        """Runs that are useful for calibrating the predictor, newest first."""
        return tuple(run for run in self.runs.values() if run is not None)


@dataclass(frozen=True)
class Subject:
    """Model, workload and cluster that a study measures; these never change once the model summary is known."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    trusted_project: str | None
    """Id of the only project that may trust this model summary, because one of its own workers made it; None if every
    project may.
    """


class PlannerCache:
    """Caches for planning studies in one process, and one ask lock for each study, which lets only one process plan
    the study at a time.

    Search spaces never change once the model summary is known; calibrations change with every measured run; each
    snapshot is valid for one version of its study.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._spaces: dict[str, Space] = {}
        self._pools: dict[str, tuple[str, Pool]] = {}
        self._specs: dict[str, StudySpec] = {}
        self._idle_at_version: dict[str, tuple[int, float]] = {}
        self._cores: dict[str, int] = {}
        self._learnt: dict[str, CalibratedRuns] = {}
        self._snapshots: dict[str, StudySnapshot] = {}
        self._begun_blocks: dict[str, str] = {}
        self._subjects: dict[str, Subject] = {}

    @contextmanager
    def ask_lock(self, study_id: str, database: Database, patience_s: float) -> Iterator[bool]:
        """Hold the ask lock of a study, with which only one process plans the study at a time, during a `with` block.
        Yields False if the lock did not become free within `patience_s` seconds.
        """
        # A thread lock first: without it, the threads of this process would each hold a database connection while they
        # wait for the advisory lock.
        with self._guard:
            lock = self._locks.setdefault(study_id, threading.Lock())
        if not lock.acquire(timeout=patience_s):
            yield False
            return
        try:
            with database.advisory_lock(f"ask {study_id}", patience_s) as has_database_lock:
                yield has_database_lock
        finally:
            lock.release()

    def note_idle(self, study_id: str, version: int) -> None:
        """Record that a study in this version of its state has no work for any worker."""
        with self._guard:
            while len(self._idle_at_version) >= _MAX_ENTRIES:
                self._idle_at_version.pop(next(iter(self._idle_at_version)))
            self._idle_at_version[study_id] = (version, time.monotonic())

    def is_idle(self, study_id: str, version: int) -> bool:
        """Whether it is known that a study in this version of its state has no work, so that it need not be read
        again.
        """
        # With 200 waiting workers this costs one look at a study per version, not 200.
        idle_version, at_s = self._idle_at_version.get(study_id, (-1, 0.0))
        return idle_version == version and time.monotonic() - at_s < _IDLE_S

    def note_begun_block(self, worker_session: str, study_id: str) -> None:
        """Record that a run waits which continues a comparison block (runs executed directly after each other) that
        this worker session has begun; the run's study is remembered.
        """
        self._store(self._begun_blocks, worker_session, study_id, _MAX_ENTRIES)

    def take_begun_block(self, worker_session: str) -> str | None:
        """Study of a waiting run that continues a comparison block (runs executed directly after each other) which
        the worker session has begun. It is returned only once; None if this process knows of no such study.
        """
        return self._begun_blocks.pop(worker_session, None)

    def cpu_count(self, fingerprint_key: str, read: Callable[[], int]) -> int:
        """Number of CPU cores of the machine that has a fingerprint (hardware and software versions)."""
        # Never invalidated: a fingerprint's key is a hash of its content.
        count = self._cores.get(fingerprint_key)
        if count is None:
            count = read()
            self._store(self._cores, fingerprint_key, count, _MAX_ENTRIES)
        return count

    def subject(self, study_id: str, read: Callable[[], Subject | None]) -> Subject | None:
        """Model, workload and cluster of a study; read from the database until they are known, then cached."""
        cached_subject = self._subjects.get(study_id)
        if cached_subject is None and (cached_subject := read()) is not None:
            self._store(self._subjects, study_id, cached_subject, _MAX_ENTRIES)
        return cached_subject

    def space(self, study_id: str, build: Callable[[], Space]) -> Space:
        """Search space of a study, built on first use and then cached."""
        space = self._spaces.get(study_id)
        if space is None:
            space = build()
            self._store(self._spaces, study_id, space, _MAX_SPACES)
        return space

    def pool(self, study_id: str, state: str, build: Callable[[], Pool]) -> Pool:
        """Candidate configurations of a study with their predictions. They are predicted again if `state` differs
        from the cached one, because new hardware rates were measured.
        """
        entry = self._pools.get(study_id)
        if entry is None or entry[0] != state:
            entry = (state, build())
            self._store(self._pools, study_id, entry, _MAX_POOLS)
        return entry[1]

    def fill_specs(self, session: Session, rows: Sequence[StudyRow]) -> None:
        """Set the `spec` attributes of study rows from the cache; only missing specs are read from the database."""
        # A spec is large JSON that never changes except for its budget, and every request for work looks at every
        # running study.
        studies.read_specs(session, [row for row in rows if row.id not in self._specs])
        with self._guard:
            for row in rows:
                if row.id in self._specs:
                    set_committed_value(row, "spec", self._specs[row.id])
                else:
                    self._specs[row.id] = row.spec
            while len(self._specs) > _MAX_ENTRIES:
                self._specs.pop(next(iter(self._specs)))

    def snapshot(self, study_id: str, version: int) -> StudySnapshot | None:
        """Cached snapshot of a study at this version, or None. The study's unfinished runs may have changed since,
        without a new version.
        """
        cached = self._snapshots.get(study_id)
        return cached if cached is not None and cached.version == version else None

    def keep_snapshot(self, snapshot: StudySnapshot) -> None:
        """Cache the snapshot of a study for the planning of its next step in this process."""
        with self._guard:
            # Removed first, so that a study in use moves to the end and the oldest unused one is dropped.
            self._snapshots.pop(snapshot.study_id, None)
            while len(self._snapshots) >= _MAX_SNAPSHOTS:
                self._snapshots.pop(next(iter(self._snapshots)))
            self._snapshots[snapshot.study_id] = snapshot

    def calibrated_runs(
        self, name: str, run_ids: Sequence[str], compare: Callable[[Sequence[str]], Mapping[str, ComparedRun]]
    ) -> CalibratedRuns:
        """Predictor calibrations fitted to these runs. Only runs that are not cached are compared with their
        predictions. `name` names what the runs have in common, such as their fingerprint.
        """
        entry = self._learnt.get(name)
        if entry is None or entry.run_ids != run_ids:
            earlier = entry.runs if entry is not None else {}
            missing = [run_id for run_id in run_ids if run_id not in earlier]
            compared = compare(missing) if missing else {}
            runs = {run_id: earlier[run_id] if run_id in earlier else compared.get(run_id) for run_id in run_ids}
            entry = CalibratedRuns(run_ids, runs, learn(run for run in runs.values() if run is not None))
            self._store(self._learnt, name, entry, _MAX_SPACES)
        return entry

    def _store(self, cache: dict[str, CachedValue], key: str, value: CachedValue, limit: int) -> None:
        """Store a value in a cache. If the cache is full (`limit` entries), the oldest entries are dropped."""
        with self._guard:
            while len(cache) >= limit:
                cache.pop(next(iter(cache)))
            cache[key] = value

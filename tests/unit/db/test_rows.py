"""Rows come back as they went in, on both databases, and the constraints hold."""

import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy.exc import IntegrityError

from shardtune.api_schemas.machines.hardware import Inventory, MeasuredHardware
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import events, leases, offered_hardware, studies, trials, workers
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.types import Stored
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC

NOON = datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))
CONFIG = TrialConfig(strategy=DdpConfig())


def add_study(session, study_id="study-1"):
    study = StudyRow(
        id=study_id,
        state=StudyState.RUNNING,
        phase=StudyPhase.SEARCH,
        spec=StudySpec.model_validate(SPEC),
        cluster=CLUSTER,
        notes=("seen",),
        created_at=NOON,
    )
    session.add(study)
    session.flush()
    return study


def test_of_what_was_read_before_only_short_values_are_kept():
    def read_twice(types):
        inventory = Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT, causal_lm_types=types).model_dump_json()
        return [column.process_result_value(inventory, None) for _ in range(2)]

    column = Stored(Inventory)
    first, again = read_twice(["llama"])
    assert first is again
    first, again = read_twice([f"of-somebody-who-writes-many-{number}" for number in range(1000)])
    assert first == again and first is not again


def test_values_and_times_survive_the_round_trip(database):
    with database.write() as session:
        study = add_study(session)
        trials.add(session, study.id, 0, CONFIG, "default", NOON)
    with database.read() as session:
        study = studies.get(session, "study-1")
        assert study.spec == StudySpec.model_validate(SPEC) and study.cluster == CLUSTER and study.notes == ("seen",)
        assert study.created_at == NOON and study.created_at.tzinfo is UTC
        assert study.model_summary is None and study.final_comparison is None
        (trial,) = trials.of_study(session, "study-1")
        assert (trial.number, trial.config, trial.state) == (0, CONFIG, TrialState.WAITING)


def test_an_event_is_written_or_rolled_back_with_its_change(database):
    with pytest.raises(RuntimeError), database.write() as session:
        add_study(session)
        raise RuntimeError("power cut")
    with database.write() as session:
        add_study(session)
    with database.read() as session:
        actual = [(row.number, row.type) for row in events.after(session, "study-1", 0, 10)]
        assert actual == [(1, "study.created")]
        assert events.stream_ends(session, ["study-1", "study-2"]) == {"study-1": events.StreamEnd(1, has_ended=False)}


def test_a_configuration_is_a_trial_once(database):
    with pytest.raises(IntegrityError), database.write() as session:
        study = add_study(session)
        trials.add(session, study.id, 0, CONFIG, "default", NOON)
        trials.add(session, study.id, 1, CONFIG, "sampler", NOON)
    with database.read() as session:
        assert studies.get(session, "study-1") is None


def test_a_session_runs_one_run_at_a_time(database):
    with database.write() as session:
        study = add_study(session)
        worker = workers.put(session, "w", "session-1", Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT), NOON)
        runs = [leases.add_run(session, study, None, "model_summary", NOON) for _ in range(2)]
        session.flush()
        leases.start(session, runs[0], worker, NOON, NOON)
        runs[0].state = TrialState.RUNNING
    with pytest.raises(IntegrityError), database.write() as session:
        worker = workers.by_session(session, "session-1")
        second = leases.get(session, runs[1].id)
        leases.start(session, second, worker, NOON, NOON)
        second.state = TrialState.RUNNING


def test_guarded_write_needs_attempt_session_and_state(database):
    with database.write() as session:
        study = add_study(session)
        worker = workers.put(session, "w", "session-1", Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT), NOON)
        run = leases.add_run(session, study, None, "model_summary", NOON)
        leases.start(session, run, worker, NOON, NOON)
        run.state = TrialState.RUNNING
    with database.write() as session:
        assert not leases.write_guarded(session, run.id, 2, "session-1", lease_until=NOON)
        assert not leases.write_guarded(session, run.id, 1, "session-2", lease_until=NOON)
        assert leases.write_guarded(session, run.id, 1, "session-1", state=TrialState.COMPLETE)
        assert not leases.write_guarded(session, run.id, 1, "session-1", lease_until=NOON)


def test_writers_that_read_first_do_not_collide(database):
    """A deferred BEGIN would fail here in SQLite with `database is locked`."""
    with database.write() as session:
        add_study(session)
    errors = []

    def count_up():
        try:
            for _ in range(10):
                with database.write() as session:
                    studies.lock(session, "study-1").version += 1
        except Exception as error:  # noqa: BLE001 (a thread's error is the test's)
            errors.append(error)

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with database.read() as session:
        assert studies.get(session, "study-1").version == 40


def test_workers_are_found_by_what_they_offer(database):
    measured = MeasuredHardware(bf16_flops=1e9, fp32_flops=1e9, copy_bytes_per_s=1e9, launch_s=1e-5)
    offers = {"old": {}, "new": {"task_kinds": TASK_KINDS}, "drained": {"task_kinds": TASK_KINDS, "measured": measured}}
    with database.write() as session:
        rows = {
            name: workers.put(session, name, name, Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT, **offer), NOON)
            for name, offer in offers.items()
        }
        rows["drained"].is_draining = True
        ids, key = {name: row.id for name, row in rows.items()}, rows["old"].fingerprint_key
    with database.read() as session:
        assert offered_hardware.measured_hardware(session, key, "default") == measured
        assert offered_hardware.measured_hardware(session, "another", "default") is None
        for kind, moment, names in (
            ("resume_check", NOON, ["new"]),
            ("resume_check", NOON + timedelta(1), []),
            ("trial", NOON, ["new", "old"]),
        ):
            assert sorted(worker.name for worker in workers.workers_supporting(session, kind, moment)) == names
        assert [worker.name for worker in workers.seen_since(session, NOON, {ids["old"]})] == ["old"]

"""`shardtune.Study` and `shardtune.best` against the real service on a socket."""

import re

import pytest

import shardtune as st
from shardtune.api_schemas.trials.failures import FailureKind
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import (
    CLUSTER,
    SPEC,
    SimulatedWorker,
    failure,
    quietly,
)

JOB = {"sequence_length": 64, "global_batch": 8}
FIELDS = {"budget": SPEC["budget"], "sampler": "tpe"}
HOSTILE = "<script>alert(1)</script>"


class Receiver:
    """Callback that keeps what it gets."""

    def __init__(self):
        self.trials, self.ended = [], []

    def trial_ended(self, study, trial):
        self.trials.append(trial.number)

    def study_ended(self, study):
        self.ended.append(study.state.value)


def create(**changes):
    workload = JOB | {name: changes.pop(name) for name in JOB if name in changes}
    return st.Study.create("llama-tiny", "local", fields=FIELDS | changes, **workload)


def test_a_study_from_its_creation_to_its_answer(http):
    worker = SimulatedWorker(http, behave=quietly).register()
    study = create()
    assert study.status().values.state.is_open and "running" in study.status().summary
    with pytest.raises(st.InputError, match=r"is running .*wait until it is complete"):
        study.best()
    worker.work()
    receiver = Receiver()
    assert study.wait(30, callbacks=[receiver], poll_s=0.05).values.state.value == "complete"
    records = study.trials().records()
    assert [record["trial"] for record in records] == sorted(receiver.trials) and receiver.ended == ["complete"]
    measured = [record for record in records if record["speed"] is not None]
    assert {record["speed_basis"] for record in measured} == {"measured"}
    assert all(record["speed_low"] <= record["speed"] <= record["speed_high"] for record in measured)
    assert {record.get("predicted_speed_basis", "predicted") for record in records} == {"predicted"}
    answer = study.best()
    assert "confirmed" in answer.summary and answer.records("speedup")[0]["speedup_low"] > 1
    assert [record["role"] for record in answer.records()][:2] == ["recommended", "baseline"]
    assert "95 % interval" in answer._repr_html_() and answer.values == study.status().values.result


def test_an_existing_study_is_read_by_its_id_or_as_the_last(http):
    SimulatedWorker(http).register()
    first, second = create(), create(seed=1)
    assert st.Study().study_id == second.study_id and st.Study(first.study_id).study_id == first.study_id
    with pytest.raises(
        st.InputError, match=rf"study \('nobody'\) is not stored here; the newest are {second.study_id}"
    ):
        st.Study("nobody")
    with st.Study(first.study_id) as study:
        assert study.stop().values.state.value == "cancelled"
    with pytest.raises(st.InputError):
        create(budget={"max_trials": -1})


def test_a_stopped_study_says_so_and_waiting_has_a_limit(http):
    SimulatedWorker(http).register()
    study = create()
    with pytest.raises(TimeoutError, match="had not ended after 0 s"):
        study.wait(0, poll_s=0.01)
    assert study.stop().values.state.value == "cancelled"
    assert study.wait(5).values.state.value == "cancelled"


@pytest.mark.answered
def test_a_failure_of_the_users_code_is_shown_as_text(http):
    def behave(lease, task):
        if task.config.backend == "zero":
            return failure(FailureKind.ILLEGAL, HOSTILE)
        return quietly(lease, task)

    worker = SimulatedWorker(http, behave=behave).register()
    study = create()
    worker.work()
    trials = study.trials()
    assert any(HOSTILE in (record["reason"] or "") for record in trials.records())
    assert "&lt;script&gt;" in trials._repr_html_() and "<script" not in trials._repr_html_()


def test_a_study_with_a_target_shows_projected_figures_as_projected(http):
    worker = SimulatedWorker(http, behave=quietly).register()
    study = create(target="8x2", global_batch=64)
    worker.work()
    answer = study.best()
    projection = answer.values.projection
    assert projection is not None, answer.notes
    records = answer.records("target")
    assert len(records) == 1 + len(projection.runners_up)
    assert {record["speed_basis"] for record in records} == {"projected"} and "not measured" in answer._repr_html_()


@pytest.mark.answered
def test_the_best_known_configuration_is_measured(http):
    cluster = CLUSTER.model_dump(mode="json")
    known = st.best("llama-tiny", cluster, lowest_confidence="low", **JOB)
    assert known.records()[0]["speed_basis"] == "measured" and known.values.match == "exact"
    for wrong, message in (
        ({"global_batch": -8}, r"global_batch"),
        ({"lowest_confidence": "none"}, r"lowest_confidence \('none'\) must be one of high, medium, low"),
        ({"sequence_length": 128, "match": "exact"}, "."),
    ):
        with pytest.raises(st.InputError, match=message):
            st.best("llama-tiny", cluster, **JOB | wrong)
    with pytest.raises(st.InputError, match="did you mean llama-tiny"):
        st.best("llama-tiy", cluster, **JOB)


def test_a_service_that_is_away_is_named_with_the_remedy(http, monkeypatch):
    SimulatedWorker(http).register()
    study = create()
    away = "http://127.0.0.1:9"
    with pytest.raises(st.PlatformFailure, match=re.escape(away) + ".*name another with service="):
        st.Study(service=away)
    study._client._calls._http.base_url = away
    assert "no answer from the service" in study._repr_html_()


def test_a_rejected_key_is_an_error_that_does_not_repeat_it(http, tmp_path):
    admin = make_key(http, "admin")
    reader = make_key(http, "studies:read", **bearer(admin))
    keys = {"wrong": "sk-no-key-of-this-service", "reader": reader["secret"]}
    for name, secret in keys.items():
        (tmp_path / name).write_text(secret)
    for key_file in (None, tmp_path / "wrong"):
        with pytest.raises(st.InputError, match=r"(?i)key") as rejected:
            st.Study(key_file=key_file)
        assert keys["wrong"] not in str(rejected.value)
    with pytest.raises(st.InputError, match="scope"):
        st.Study.create("llama-tiny", "local", key_file=tmp_path / "reader", **JOB)
    with pytest.raises(st.InputError, match="cannot be read"):
        st.Study(key_file=tmp_path / "missing")

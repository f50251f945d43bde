"""`tune --rungs`, given again: finished sizes are used again, and the unfinished one goes on."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.machines.workers import Worker
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.local_stack import DATABASE_VARIABLE
from shardtune.service.cli.tune import continuation, earlier_studies
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.workers import target_rungs
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.synthetic_studies import contender_of, study_of

RUNG = TuneOptions(
    Path("study.json"), 1, None, None, False, Path(".shardtune"), Path("best/rungs/1"), False, rung=1, rungs=(1,)
)
WHOLE = TuneOptions(Path("study.json"), 2, None, None, False, Path(".shardtune"), Path("best"), False, rungs=(1,))
CPU = Cluster(device="cpu", gpus_per_node=1, memory_gib=4, host_memory_gib=8)
BEST = contender_of(TrialConfig(strategy=DdpConfig()))
RESULT = StudyResult(best=BEST, baseline=BEST, speedup=None, verdict=Verdict.NOT_FASTER)


def request(**changes: Any) -> StudyRequest:
    values = {
        "model": "llama-tiny",
        "workload": {"sequence_length": 64, "global_batch": 64},
        "target": "8x2",
        "budget": {"max_trials": 3},
    }
    return study_file.validate_study(values | changes, Path())


def stored(state: StudyState = StudyState.COMPLETE, minutes: int = 0, ranks: int = 1, **changes: Any) -> Study:
    """Study as the service stores it, created so many minutes after the first."""
    cluster = CPU.model_copy(update={"gpus_per_node": ranks})
    study = study_of()
    spec = target_rungs.on_rung(request(**changes), cluster).with_precision(study.spec.workload.precision)
    fields = {
        "study_id": f"study-{minutes}",
        "spec": spec.with_possible_backends(),
        "cluster": cluster,
        "state": state,
        "result": RESULT if state is StudyState.COMPLETE else None,
        "created_at": study.created_at + timedelta(minutes=minutes),
        "fingerprint": Fingerprint.model_validate(FINGERPRINT.model_dump()),
    }
    # As it comes over HTTP.
    return Study.model_validate_json(study.model_copy(update=fields).model_dump_json())


class Service:
    """Client of a service with these studies and one live worker."""

    def __init__(self, *studies: Study, memory_gib: float = 4, ranks: int = 1, **changes: Any) -> None:
        self._studies = studies
        self._fingerprint = FINGERPRINT.model_copy(update=changes)
        self._cluster = CPU.model_copy(update={"memory_gib": memory_gib, "gpus_per_node": ranks})
        self.paused: list[str] = []

    def studies(self) -> list[Study]:
        return list(self._studies)

    def workers(self) -> list[Worker]:
        moment = study_of().created_at
        return [
            Worker(
                worker_id=name,
                name=name,
                inventory=Inventory(cluster=self._cluster, fingerprint=self._fingerprint),
                registered_at=moment,
                seen_at=moment,
                is_live=is_live,
            )
            for name, is_live in (("own", True), ("other", False))
        ]

    def pause(self, study_id: str, paused: bool) -> None:
        assert paused
        self.paused.append(study_id)


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)


def find(*studies: Study, options: TuneOptions = RUNG, **changes: Any) -> Study | None:
    return earlier_studies.find(Service(*studies), request(**changes), options)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [StudyState.COMPLETE, StudyState.RUNNING, StudyState.PAUSED])
def test_the_same_study_on_the_same_size_is_found(state: StudyState) -> None:
    study = stored(state)
    assert find(study) == study


def test_the_newest_finished_one_is_used_although_a_repetition_was_cut_short() -> None:
    older, newer, cut_short = stored(), stored(minutes=5), stored(StudyState.PAUSED, minutes=9)
    assert find(older, cut_short, newer) == newer


@pytest.mark.parametrize(
    "study",
    [
        stored(StudyState.FAILED),
        stored(StudyState.CANCELLED),
        stored(ranks=2),
        stored(budget={"max_trials": 4}),
        stored(target="4x2", workload={"sequence_length": 64, "global_batch": 32}),
        stored(workload={"sequence_length": 32, "global_batch": 64}),
        stored(seed=1),
        stored(space={"backends": ["ddp"]}),
        stored(baseline={"strategy": {"kind": "ddp"}}),
    ],
    ids=["failed", "cancelled", "ranks", "budget", "target", "workload", "seed", "space", "baseline"],
)
def test_any_other_study_leaves_the_size_to_be_measured(study: Study) -> None:
    assert find(study) is None


def test_the_last_size_goes_on_but_is_measured_anew_once_it_has_ended() -> None:
    assert find(stored(ranks=2), options=WHOLE) is None
    unfinished = stored(StudyState.PAUSED, ranks=2)
    assert find(unfinished, options=WHOLE) == unfinished


def test_time_to_wait_makes_no_other_study() -> None:
    study = stored()
    assert find(study, wait_for_quiet_s=60) == study


def test_a_smaller_size_needs_no_sustained_run_and_uses_a_study_that_made_one() -> None:
    made, without = stored(), {"max_trials": 3, "sustained_run_s": 0}
    assert find(made, budget=without) == made
    unfinished = stored(StudyState.PAUSED, ranks=2)
    assert find(unfinished, options=WHOLE, budget=without) is None, "the last size makes it as its study says"


def test_commands_without_rungs_and_shared_databases_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TuneOptions(Path("study.json"), 1, None, None, False, Path(".shardtune"), Path("best"), False)
    assert find(stored(StudyState.RUNNING), options=plain) is None
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://shared")
    assert find(stored()) is None


def compare(study: Study, **changes: Any) -> tuple[Study | None, list[str], list[str]]:
    client, said = Service(study, **changes), list[str]()
    kept = earlier_studies.if_comparable(client, study, "own", RUNG, said.append)  # type: ignore[arg-type]
    return kept, said, client.paused


def test_a_study_that_is_used_again_is_named_in_one_line() -> None:
    study = stored()
    line = (
        "study study-0 of 2026-01-01 00:00 UTC measured the same on 1 rank and is used again; another --state-dir "
        "measures anew"
    )
    assert compare(study) == (study, [line], [])
    unfinished = stored(StudyState.RUNNING)
    goes_on = "study study-0 on 1 rank is unfinished and goes on"
    assert compare(unfinished) == (unfinished, [goes_on], [])
    # The last size of a command without --ranks.
    said: list[str] = []
    whole = replace(RUNG, rung=None, ranks=None)
    earlier_studies.if_comparable(Service(unfinished), unfinished, "own", whole, said.append)  # type: ignore[arg-type]
    assert said == [goes_on]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"torch": "9.9.0"}, "torch"),
        ({"memory_gib": 2}, "memory of a rank"),
        ({"ranks": 4}, "number of ranks of a node"),
    ],
)
def test_a_study_of_other_software_or_memory_is_measured_anew_and_says_why(changes: Any, named: str) -> None:
    kept, said, paused = compare(stored(), **changes)
    assert kept is None and paused == []
    assert said == [f"study study-0 on 1 rank does not compare with new runs and is not used: other {named}"]
    assert compare(stored(StudyState.RUNNING), **changes)[2] == ["study-0"]


RESUMED = replace(WHOLE, study=None, ranks=None, resume=True, rungs=())


def resume(study: Study, **changes: Any) -> None:
    continuation.check_worker(Service(study, **changes), study, "own", RESUMED)  # type: ignore[arg-type]


def test_a_resumed_study_goes_on_where_it_compares() -> None:
    resume(stored(StudyState.RUNNING))
    # A study that nothing has measured yet compares with any software.
    resume(stored(StudyState.RUNNING).model_copy(update={"fingerprint": None}), torch="9.9.0")


@pytest.mark.parametrize(
    ("stored_study", "changes", "words"),
    [
        (stored(StudyState.RUNNING), {"torch": "9.9.0"}, r"other torch \(9.9.0 instead of 2.*\); restore it, or start"),
        (
            stored(StudyState.RUNNING, ranks=2),
            {"ranks": 1},
            r"needs 2 × CPU ranks.* and this machine has 1 × CPU ranks",
        ),
        (
            stored(StudyState.RUNNING).model_copy(
                update={
                    "cluster": Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=1, memory_gib=80, host_memory_gib=99)
                }
            ),
            {},
            r"needs 1 × NVIDIA H100 80GB HBM3.* and this machine has 1 × CPU ranks.*; continue it on that hardware",
        ),
    ],
)
def test_a_resumed_study_that_would_wait_for_ever_is_rejected(
    stored_study: Study, changes: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=rf"--resume: study study-0 .*{words}"):
        resume(stored_study, **changes)
    # Another worker of a shared database may run it.
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://shared")
    resume(stored_study, **changes)

"""`tune` with a study that confirms a projection: a second submission goes on where the first one stopped."""

from datetime import timedelta
from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.local_stack import DATABASE_VARIABLE, LocalWorker
from shardtune.service.cli.tune import continuation
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.client import ServiceRejected
from tests.support.values.synthetic_studies import contender_of, study_of

OPTIONS = TuneOptions(Path("confirm.json"), None, None, None, False, Path(".shardtune"), Path("best"), False)
SECOND = TrialConfig(strategy=ZeroConfig(stage=2))


def comparison(state: StudyState, more_pairs: int | None = None, minutes: int = 0, **changes: object) -> Study:
    """Stored comparison of two choices, created so many minutes after the first; `more_pairs` would decide it."""
    best = contender_of(TrialConfig(strategy=DdpConfig()))
    verdict = Verdict.CONFIRMED if more_pairs is None else Verdict.UNDECIDED
    open_verdict = None if more_pairs is None else OpenVerdict(pairs=7, won_pairs=5, more_pairs=more_pairs)
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=verdict, undecided=open_verdict)
    study = study_of()
    fields = {
        "spec": study.spec.model_copy(update={"confirms": "study-1", "baseline": SECOND} | changes),
        "state": state,
        "result": None if state.is_open else result,
        "created_at": study.created_at + timedelta(minutes=minutes),
    }
    return study.model_copy(update=fields)


class Service:
    """Client of a service with these studies."""

    base_url, api_key = "http://127.0.0.1:1", None

    def __init__(self, *studies: Study) -> None:
        self._studies = studies

    def studies(self) -> list[Study]:
        return list(self._studies)


def earlier(*studies: Study, **changes: object) -> Study | None:
    asked = comparison(StudyState.RUNNING, **changes).spec
    return continuation.earlier_confirmation(Service(*studies), asked)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)


@pytest.mark.parametrize("state", [StudyState.RUNNING, StudyState.PAUSED])
def test_a_comparison_that_did_not_end_goes_on(state: StudyState) -> None:
    unfinished = comparison(state)
    assert earlier(unfinished) == unfinished
    assert continuation.due_extension(unfinished, OPTIONS) is None


def test_a_comparison_that_did_not_decide_gets_the_pairs_that_it_lacks() -> None:
    open_one = comparison(StudyState.COMPLETE, more_pairs=3)
    assert earlier(open_one) == open_one
    extension = continuation.due_extension(open_one, OPTIONS)
    assert extension is not None and extension.add_pairs == 6


@pytest.mark.parametrize(
    "studies",
    [
        (comparison(StudyState.COMPLETE),),
        (comparison(StudyState.CANCELLED),),
        (comparison(StudyState.RUNNING), comparison(StudyState.COMPLETE, minutes=5)),
        (comparison(StudyState.RUNNING, confirms="study-2"),),
        (comparison(StudyState.RUNNING, baseline=TrialConfig(strategy=DdpConfig())),),
    ],
    ids=["decided", "cancelled", "an older one", "of another study", "of other choices"],
)
def test_any_other_study_leaves_a_comparison_to_begin_anew(studies: tuple[Study, ...]) -> None:
    assert earlier(*studies) is None


def test_studies_that_confirm_nothing_and_shared_databases_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = comparison(StudyState.RUNNING, confirms=None)
    assert earlier(plain, confirms=None) is None
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://shared")
    assert earlier(comparison(StudyState.RUNNING)) is None


def test_a_finished_study_without_a_target_is_never_extended_by_itself() -> None:
    assert continuation.due_extension(comparison(StudyState.COMPLETE, more_pairs=3, confirms=None), OPTIONS) is None


class OtherSoftware(Service):
    """Client of a service whose only worker has other software than the stored studies."""

    def __init__(self, code: str, *studies: Study) -> None:
        super().__init__(*studies)
        self._code = code

    def extend(self, study_id: str, more: Extension) -> Study:
        raise ServiceRejected(422, {"code": self._code, "detail": f"study_id ({study_id}) cannot go on: torch 2.14.0"})

    def create_study(self, spec: StudyRequest, study_id: str | None) -> Study:
        return comparison(StudyState.RUNNING, minutes=9)


def continued(client: Service, stored: Study, spec: StudyRequest | None) -> tuple[Study, list[str]]:
    said: list[str] = []
    return continuation.begin_or_continue(client, stored, spec, OPTIONS, said.append), said  # type: ignore[arg-type]


def test_a_comparison_that_other_software_cannot_continue_begins_anew() -> None:
    stored = comparison(StudyState.COMPLETE, more_pairs=3)
    study, said = continued(OtherSoftware("no_worker", stored), stored, stored.spec)
    assert study.created_at > stored.created_at
    assert len(said) == 1 and "torch 2.14.0" in said[0] and "new comparison" in said[0]


@pytest.mark.parametrize(("code", "is_named"), [("study_ended", True), ("no_worker", False)])
def test_other_rejections_of_more_pairs_end_the_command(code: str, is_named: bool) -> None:
    stored = comparison(StudyState.COMPLETE, more_pairs=3)
    with pytest.raises(InputError, match="cannot go on"):
        continued(OtherSoftware(code, stored), stored, stored.spec if is_named else None)


def test_workers_over_other_numbers_of_hosts_have_other_names(tmp_path: Path) -> None:
    def name(*options: str) -> str:
        return LocalWorker(Service(), tmp_path, 1, None, options).name  # type: ignore[arg-type]

    two, eight = name("--launcher", "slurm", "--nodes", "2"), name("--launcher", "slurm", "--nodes", "8")
    assert two != eight and two == name("--nodes", "2", "--launcher", "slurm")
    assert name("--launcher", "slurm") == f"hosts:{tmp_path}"

"""Next command of an answer that is printed again: for a study of `tune`, and for one of a service."""

from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.service.cli.tune import next_commands
from tests.unit.service.cli.next_commands.undecided_study import undecided


class StoredStudies:
    """A service that stores a study and, if `later` is given, a newer one with an answer."""

    def __init__(self, study: Study, *later: Study) -> None:
        self._studies = [*later, study]

    def studies(self) -> list[Study]:
        return self._studies


def printed_again(rests_on: str = "pairs", service: str | None = None, *, is_newest: bool = True) -> list[str]:
    """Rows below the answer of a study whose machine was too busy, as `best` and `studies` print them."""
    study, result = undecided(None)
    busy = BusyMachine(rests_on=rests_on, runs=18, disturbed_runs=18, uneven_pairs=0, missing_runs=2)
    result = result.model_copy(update={"verdict": Verdict.TOO_BUSY, "too_busy": busy, "undecided": None})
    study = study.model_copy(update={"result": result})
    later = [] if is_newest else [study.model_copy(update={"study_id": "study-2"})]
    client: Any = StoredStudies(study, *later)
    return next_commands.rows(client, study, result, service, Path("state"))


def test_an_answer_that_is_printed_again_names_the_command_of_tune() -> None:
    assert printed_again() == [
        "files       shardtune export study-1 --out best --state-dir state",
        "to decide   shardtune tune --add-pairs 1 --wait-for-quiet 30 --state-dir state (waits for a quiet machine, 30 "
        "minutes in all; then it runs even if busy)",
    ]
    assert "shardtune tune FILE --wait-for-quiet 30 --state-dir state" in printed_again("search")[1]


def test_only_the_newest_study_is_extended_by_tune() -> None:
    row = printed_again(is_newest=False)[1]
    assert "shardtune studies extend study-1 --add-pairs 1 --wait-for-quiet-s 1800, while" in row
    assert row.endswith("`shardtune serve --state-dir state` and a `shardtune worker` run")


def test_the_study_of_a_service_is_extended_there() -> None:
    files, row = printed_again(service="http://gpu:8470")
    assert files.endswith("shardtune export study-1 --out best --service http://gpu:8470")
    assert row.endswith("extend study-1 --add-pairs 1 --wait-for-quiet-s 1800 --service http://gpu:8470")
    assert "studies clone study-1 --service http://gpu:8470, once" in printed_again("search", "http://gpu:8470")[1]


@pytest.mark.parametrize("state", [StudyState.RUNNING, StudyState.WAITING])
def test_a_study_that_is_being_extended_has_no_next_command(state: StudyState) -> None:
    study, result = undecided(3)
    client: Any = StoredStudies(study)
    assert next_commands.to_decide(client, study, result, None, Path("state")) is not None
    extended = study.model_copy(update={"state": state})
    assert next_commands.to_decide(client, extended, result, None, Path("state")) is None

"""Commands below an answer that is printed again have the options without which they would be rejected."""

from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.service.cli.tune import next_commands
from tests.unit.service.cli.next_commands.undecided_study import undecided

KEY_FILE, SERVICE = Path("my keys/service"), "http://gpu:8470"


class StoredStudies:
    """A service that stores some studies, newest first."""

    def __init__(self, *stored: Study) -> None:
        self._stored = list(stored)

    def studies(self) -> list[Study]:
        return self._stored


def to_decide(study: Study, result: StudyResult, *newer: Study, service: str | None = None) -> str:
    client: Any = StoredStudies(*newer, study.model_copy(update={"result": result}))
    key_file = None if service is None else KEY_FILE
    return str(next_commands.to_decide(client, study, result, service, Path("state"), key_file))


def test_a_service_that_requires_keys_gets_the_file_that_was_named() -> None:
    study, result = undecided(3)
    client: Any = StoredStudies(study)
    files, row = next_commands.rows(client, study, result, SERVICE, Path("state"), KEY_FILE)
    for command in (files, row):
        assert command.endswith(f"--service {SERVICE} --key-file 'my keys/service'")


@pytest.mark.parametrize(
    ("nodes", "model", "options"),
    [
        (1, None, ""),
        (2, None, "; add the --launcher options that the study ran with"),
        (1, "mine", "; add the --allow-script or --allow-model options that the study ran with"),
        (2, "mine", "; add the --allow-script or --allow-model and --launcher options that the study ran with"),
    ],
)
def test_options_that_the_state_directory_does_not_hold_are_named(nodes: int, model: str | None, options: str) -> None:
    """`tune` offers one node without a launcher, and rejected the printed command."""
    study, result = undecided(3)
    spec = study.spec if model is None else study.spec.model_copy(update={"model": ModelSpec(name="x", script=model)})
    study = study.model_copy(update={"spec": spec, "cluster": study.cluster.model_copy(update={"nodes": nodes})})
    assert (
        to_decide(study, result)
        == f"shardtune tune --add-pairs 6 --state-dir state (ends as soon as the pairs decide){options}"
    )


def test_an_older_study_of_the_state_directory_needs_a_worker_beside_the_service() -> None:
    """The service alone rejects the extension, as no worker has the study's cluster."""
    study, result = undecided(3)
    newer = study.model_copy(update={"study_id": "study-2", "result": result})
    command = to_decide(study, result, newer)
    assert command.endswith(", while `shardtune serve --state-dir state` and a `shardtune worker` run")


def test_a_clone_of_a_study_whose_short_steps_were_wrong_times_whole_steps() -> None:
    """A plain clone would time the same short steps, and end as undecided."""
    study, result = undecided(None)
    assert result.undecided is not None
    off = result.model_copy(update={"undecided": result.undecided.model_copy(update={"is_extension_off": True})})
    assert to_decide(study, result, service=SERVICE).endswith("(runs it again)")
    command = to_decide(study, off, service=SERVICE)
    assert "--changes CHANGES.json" in command and '"short_steps": false' in command and "runs it again" not in command

"""The sentences of an answer agree with the database that it comes from, by the checks of `benchmarks.busy`."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchmarks.busy.rows import read_rows
from benchmarks.busy.sentences import check
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.app import create_app
from shardtune.service.cli import summary
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.long_run import wide
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import THREE_BACKENDS, run_study
from tests.support.service.simulated_worker import measurement, speed_of

CONDITIONS = {"foreign_cpu_cores": 1.4}


def busy_worker(seed: int, disturbed: float) -> Callable[[Any, TrialTask], Measurement]:
    """Behaviour of a worker whose runs other programs disturb with this probability: they are slower then."""
    draw = random.Random(seed)

    def behave(_lease: Any, task: TrialTask) -> Measurement:
        is_disturbed = draw.random() < disturbed
        speed = speed_of(task.config) * draw.gauss(1.0, 0.03) * (draw.uniform(0.3, 0.9) if is_disturbed else 1.0)
        conditions = {"conditions": CONDITIONS} if is_disturbed else {}
        return Measurement.model_validate(measurement(speed).model_dump() | conditions)

    return behave


@pytest.mark.parametrize(
    ("seed", "disturbed"), [(1, 0.0), (2, 0.3), (1, 0.9), wide(2, 0.0), wide(1, 0.3), wide(2, 0.9)]
)
def test_each_sentence_of_an_answer_is_read_and_true(sqlite_url: str, seed: int, disturbed: float) -> None:
    changes = THREE_BACKENDS | {"budget": {"max_trials": 6, "max_pairs": 10}}
    settings = Settings(database_url=sqlite_url, sweep_s=3600, fingerprint_check_s=3600, retune_every_s=3600)
    with local_client(create_app(context=Context.opened(settings), migrate=False)) as client:
        study_json, trials_json = run_study(client, busy_worker(seed, disturbed), **changes)
    study, trials = Study.model_validate(study_json), TypeAdapter(list[Trial]).validate_python(trials_json)
    assert study.result is not None, study.reason
    rows = read_rows(Path(sqlite_url.removeprefix("sqlite:///")), study.study_id)
    statements = check(summary.as_json(study, study.result, trials), rows)
    assert statements.false == ()
    assert statements.count >= 6
    notes = {note for note in statements.unread if note in study.result.notes}
    assert set(statements.unread) - notes <= {reason for reason in statements.unread if "checkpoint" in reason}

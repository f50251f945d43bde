"""kill -9 of the worker in mid-trial: no rank survives, nothing is lost or counted twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_parts import Stack, study, until

pytestmark = pytest.mark.ranks


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    opened = Stack(tmp_path)
    yield opened
    opened.close()


def _training(stack: Stack, study_id: str) -> Any:
    """True once ranks of a search run train."""
    runs = [run for trial in stack.trials(study_id) for run in trial["runs"] if run["state"] == "running"]
    return any((run["progress"] or {}).get("phase") in ("warming_up", "measuring") for run in runs)


def test_a_killed_worker_leaves_no_rank_and_its_successor_finishes(stack: Stack) -> None:
    stack.start_service()
    worker = stack.start_worker()
    study_id = stack.create(study())
    until(lambda: _training(stack, study_id), 120, "a trial trains")
    family = worker.children(recursive=True)
    assert len(family) >= 3, "the warm host and two ranks"
    worker.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    stack.start_worker()
    until(lambda: stack.study(study_id)["state"] != "running", 240, "the study ends")
    found = stack.study(study_id)
    assert (found["state"], found["trials"]) == ("complete", {"complete": 3}), found["reason"]
    runs = [run for trial in stack.trials(study_id) for run in trial["runs"]]
    ends = [[attempt["end"] for attempt in run["attempts"]] for run in runs]
    assert ends.count(["worker_lost", "complete"]) == 1
    assert all(run.count("complete") == 1 and run[-1] == "complete" for run in ends)
    assert len(runs) == 3 + 2 * 5

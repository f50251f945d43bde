"""A worker with `--exit-when-idle` serves its study to the end, then ends by itself with exit code 0."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes.stack import Stack, study

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(400)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    opened = Stack(tmp_path)
    yield opened
    opened.close()


def test_a_worker_ends_after_the_study_and_leaves_nothing(stack: Stack) -> None:
    stack.start_service()
    agent = stack.start_worker(options=["--exit-when-idle", "0.1"])
    budget = {"max_trials": 1, "repeat_disturbed": 0, "resume_check": False}
    study_id = stack.create(study(budget=budget, space={"backends": ["ddp"]}))
    below = agent.children(recursive=True)
    assert agent.wait(timeout=300) == 0
    assert stack.study(study_id)["state"] == "complete"
    gone, alive = psutil.wait_procs(below, timeout=10)
    assert gone and not alive

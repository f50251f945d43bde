"""Agent, fork server and a rank, each killed and each stopped for longer than the lease, in real trials of one worker.

Nothing is left, nothing is lost, nothing is counted twice, and every study finishes. The worker ends by itself after the last one.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes.stack import Crew, Stack, study, until

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

LEASE_S = 8
PLAN = {"parity_steps": 2, "max_warmup_steps": 1, "window_steps": 6, "min_windows": 8, "max_windows": 8}
"""Long enough to be hit."""
DEEDS = 6


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    opened = Stack(tmp_path)
    yield opened
    opened.close()


class Story:
    """Studies of one trial each, the worker that serves them, and what has happened to their runs."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        stack.start_service(lease_s=LEASE_S, heartbeat_s=0.5, measure=json.dumps(PLAN))
        self.agent = stack.start_worker()
        # The trial of the last is also the answer that goes on from a checkpoint.
        budget = {"max_trials": 1, "repeat_disturbed": 0}
        budgets = [budget | {"resume_check": number == DEEDS} for number in range(1, DEEDS + 1)]
        self._studies = [stack.create(study(budget=budget, space={"backends": ["ddp"]})) for budget in budgets]
        self.hit: dict[str, str] = {}
        """Faults injected into each run, by id."""
        self.last = ""
        self.below: set[psutil.Process] = set()
        """Processes that were below the agent while the last studies ended."""

    def next_crew(self, deed: str) -> Crew:
        """Wait until a run that was left alone so far trains, and note what happens to it."""
        run_id = str(until(self._untouched_run, 180, f"a run trains, before: {deed}"))
        self.hit[run_id], self.last = deed, run_id
        return Crew(self.agent)

    def _runs(self, *studies: str) -> list[dict[str, Any]]:
        return [run for study_id in studies for trial in self._stack.trials(study_id) for run in trial["runs"]]

    def _untouched_run(self) -> str | None:
        # Studies have their turn one after the other, and each has one run to hit.
        for run in self._runs(self._studies[len(self.hit)]):
            trains = (run["progress"] or {}).get("phase") == "measuring"
            if run["state"] == "running" and trains and len(run["attempts"]) == 1 and run["run_id"] not in self.hit:
                return str(run["run_id"])
        return None

    def replace_agent(self) -> None:
        """Start another worker, which always has work until the last study has ended."""
        self.agent = self._stack.start_worker(options=["--exit-when-idle", "0.1"])

    def ends(self) -> dict[str, list[str]]:
        """Ends of the attempts at each run."""
        return {run["run_id"]: [attempt["end"] for attempt in run["attempts"]] for run in self._runs(*self._studies)}

    def finished(self) -> list[dict[str, Any]]:
        def studies() -> list[dict[str, Any]]:
            return [self._stack.study(study_id) for study_id in self._studies]

        def have_ended() -> bool:
            if not is_gone(self.agent):
                self.below |= set(self.agent.children(recursive=True))
            return all(actual_study["state"] != "running" for actual_study in studies())

        until(have_ended, 300, "the studies end")
        assert self.below
        return studies()


def test_whatever_is_killed_or_stopped_every_study_finishes_and_nothing_is_left(stack: Stack) -> None:
    story = Story(stack)

    crew = story.next_crew("agent killed")
    crew.agent.kill()
    until(lambda: all(map(is_gone, crew.below)), 5, "host and ranks die with the agent")
    story.replace_agent()

    crew = story.next_crew("agent stopped")
    crew.agent.suspend()
    until(lambda: all(map(is_gone, crew.ranks)), LEASE_S + 5, "ranks end themselves with the lease of a stopped agent")
    until(lambda: story.ends()[story.last] == ["worker_lost"], 20, "the service takes the run away")
    crew.agent.resume()

    crew = story.next_crew("host killed")
    crew.host.kill()
    until(lambda: all(map(is_gone, [crew.host, *crew.ranks])), 5, "ranks die with their host")

    crew = story.next_crew("host stopped")
    crew.host.suspend()
    # Its ranks would train on to their end, and what they have measured would reach nobody.
    until(lambda: is_gone(crew.host), 30, "the agent ends a host that stands still")
    assert all(map(is_gone, crew.ranks))

    crew = story.next_crew("rank killed")
    crew.rank.send_signal(signal.SIGKILL)
    until(lambda: all(map(is_gone, crew.ranks)), 15, "its peer ends too")

    crew = story.next_crew("rank stopped")
    crew.rank.suspend()
    until(lambda: is_gone(crew.rank), 30, "the agent ends a rank that stands still")

    for actual in story.finished():
        assert (actual["state"], actual["trials"]) == ("complete", {"complete": 1}), actual["reason"]
    assert story.agent.wait(timeout=60) == 0
    until(lambda: all(map(is_gone, story.below)), 10, "the worker ends when no study is left, and leaves nothing")
    ends = story.ends()
    assert {deed: ends[run_id][0] for run_id, deed in story.hit.items()} == {
        "agent killed": "worker_lost",
        "agent stopped": "worker_lost",
        "host killed": "rank_lost",
        "host stopped": "rank_lost",
        "rank killed": "rank_lost",
        "rank stopped": "rank_lost",
    }
    assert all(run.count("complete") == 1 and run[-1] == "complete" for run in ends.values()), ends

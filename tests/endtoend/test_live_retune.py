"""A real service, worker and ranks: nothing changed is seen at a third of the runs, and ranks that are slower are noticed."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.db.queries import best, retunes
from shardtune.db.session import Database
from shardtune.db.tables.canaries import CanaryRow
from shardtune.service.canaries import judge, send
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.settings import Settings
from tests.support.processes.stack import Stack, study, until

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of real ranks: make test-long"),
]

PLAN = {"window_steps": 10, "max_windows": 20, "max_measure_s": 3.0}
"""A step of the fastest takes 10 ms: two dozen of them, as by default, vary too much to tell a fifth from."""

# Of the fastest backend one configuration per micro batch: what differs in a bucket's size only is a tie.
SPACE = {
    "backends": ["ddp", "fsdp2", "zero"],
    "knobs": {
        "activation_checkpointing": "none",
        "micro_batch": [1, 4],
        "dp_shard": 2,
        "bucket_cap_mb": 25,
        "gradient_as_bucket_view": True,
        "static_graph": False,
    },
}


class Life:
    """A finished search, and the service's own steps beside the service."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        stack.start_service(measure=json.dumps(PLAN))
        self.agent = stack.start_worker()
        self.study_id = stack.create(study(budget={"max_trials": 14}, space=SPACE))
        until(lambda: stack.study(self.study_id)["state"] != "running", 400, "the search ends")
        actual_study = stack.study(self.study_id)
        assert actual_study["state"] == "complete", actual_study["reason"]
        self.runs = sum(actual_study["trials"].values()) + actual_study["result"]["final_comparison"]["runs"]
        for trial in stack.trials(self.study_id):
            print(trial["tokens_per_s_per_gpu"], trial["description"])
        url = f"sqlite:///{folder}/shardtune.sqlite3"
        self.context = Context(Database(url), Settings(database_url=url))
        (served,) = stack.http.get("/v1/recommendations").json()["recommendations"]
        self.case = served["project_id"], served["target_key"]

    def retune(self, cause: RetuneCause) -> dict[str, Any]:
        now = self.context.now()
        project_id, key = self.case
        with self.context.db.write() as session:
            row = queue.request_retune(
                session, project_id=project_id, target_key=key, cause=cause, not_before=now, now=now
            )
            retune_id = row.id
        until(lambda: self._step(retune_id), 200, "the retune ends")
        body: dict[str, Any] = self.stack.http.get(f"/v1/retunes/{retune_id}").json()
        return body

    def canary(self) -> CanaryRow:
        """One canary, from being sent to its verdict."""
        time.sleep(1.1)
        with self.context.db.read() as session:
            current = best.current_target(session, *self.case)
            assert current is not None
            case = current.project_id, current.target_key
        assert send.begin_if_due(self.context, *case, period_s=1.0)
        until(
            lambda: judge.judge_and_begin(self.context) + 1 and self._last().verdict not in (None, "slow"),
            120,
            "a verdict",
        )
        return self._last()

    def _last(self) -> CanaryRow:
        with self.context.db.read() as session:
            return session.scalars(select(CanaryRow).order_by(CanaryRow.created_at.desc()).limit(1)).one()

    def _step(self, retune_id: str) -> bool:
        queue.start_due(self.context, challenge_steps.start_challenge)
        driver.drive(self.context, challenge_steps.start_challenge, challenge_steps.advance_retune)
        with self.context.db.read() as session:
            row = retunes.get(session, retune_id)
            return row is not None and row.state == "ended"


class Slowed:
    """Ranks stand still for a fifth of the time, at short turns: 20 % slower, whatever they do."""

    PERIOD_S, SHARE = 0.025, 0.2

    def __init__(self, agent: psutil.Process) -> None:
        self._agent, self._ends = agent, threading.Event()
        self._thread = threading.Thread(target=self._turns, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _turns(self) -> None:
        looked_at, ranks = 0.0, list[psutil.Process]()
        while not self._ends.is_set():
            if time.monotonic() - looked_at > 0.3:
                looked_at, ranks = time.monotonic(), self._ranks()
            self._signal(ranks, "suspend")
            time.sleep(self.PERIOD_S * self.SHARE)
            self._signal(ranks, "resume")
            time.sleep(self.PERIOD_S * (1 - self.SHARE))

    def _ranks(self) -> list[psutil.Process]:
        """The leaves below the agent: host (and what isolates it) have children while ranks run."""
        return [process for process in self._agent.children(recursive=True) if self._is_rank(process)]

    def _is_rank(self, process: psutil.Process) -> bool:
        try:
            return process.ppid() != self._agent.pid and not process.children()
        except psutil.NoSuchProcess:
            return False

    def _signal(self, ranks: list[psutil.Process], description: str) -> None:
        for rank in ranks:
            try:
                getattr(rank, description)()
            except psutil.NoSuchProcess:
                continue


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    folder = tmp_path_factory.mktemp("life")
    stack = Stack(folder)
    try:
        yield Life(stack, folder)
    finally:
        stack.close()


def test_a_challenge_costs_a_third_of_a_search_and_keeps_what_has_not_changed(life: Life) -> None:
    retune = life.retune(RetuneCause.MANUAL)
    assert (retune["outcome"], retune["search_study_id"]) == ("kept", None), retune["reason"]
    trials = life.stack.trials(retune["challenge_study_id"])
    runs = sum(len(trial["runs"]) for trial in trials)
    print(f"search: {life.runs} runs; challenge: {runs} runs; {retune['reason']}")
    assert 2 <= runs <= life.runs / 3
    renewed = life.stack.http.get("/v1/best", params={"target_key": life.case[1]}).json()
    assert renewed["study_id"] == retune["challenge_study_id"] and renewed["freshness"] == "fresh"


def test_ranks_slowed_by_a_fifth_are_noticed_by_the_next_canary_and_others_pass(life: Life) -> None:
    usual = [life.canary() for _ in range(3)]
    print(f"not slowed: {[(row.verdict, row.change) for row in usual]}")
    assert [row.verdict for row in usual] == ["normal"] * 3
    with Slowed(life.agent):
        slow = life.canary()
    print(f"canary: {slow.verdict}, {slow.change}, {slow.reason}")
    assert slow.verdict == "drift" and slow.change is not None and slow.change < 0.87, slow.reason
    with life.context.db.read() as session:
        causes = [row.cause for row in retunes.page(session, retunes.RetuneFilter(*life.case), None, 9)]
    assert causes == ["drift", "manual"]

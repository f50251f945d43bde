"""A real service, worker and ranks: that nothing changed is seen at a third of the runs of a search."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_parts import Stack, study, until

from api_schemas.retunes import Cause
from db import retunes
from db.session import Database
from service import challenge, retune_queue, retune_steps
from service.context import Context
from service.settings import Settings

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of real ranks: make test-long"),
]

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
        stack.start_service()
        self.agent = stack.start_worker()
        self.study_id = stack.create(study(budget={"max_trials": 14}, space=SPACE))
        until(lambda: stack.study(self.study_id)["state"] != "running", 400, "the search ends")
        found = stack.study(self.study_id)
        assert found["state"] == "complete", found["reason"]
        self.runs = sum(found["trials"].values()) + found["result"]["promotion"]["runs"]
        for trial in stack.trials(self.study_id):
            print(trial["tokens_per_s_per_gpu"], trial["description"])
        url = f"sqlite:///{folder}/shardtune.sqlite3"
        self.context = Context(Database(url), Settings(database_url=url))
        (served,) = stack.http.get("/v1/recommendations").json()["recommendations"]
        self.case = served["project_id"], served["study_key"]

    def retune(self, cause: Cause) -> dict[str, Any]:
        now = self.context.now()
        project_id, key = self.case
        with self.context.db.write() as session:
            row = retune_queue.request(
                session, project_id=project_id, study_key=key, cause=cause, not_before=now, now=now
            )
            retune_id = row.id
        until(lambda: self._step(retune_id), 200, "the retune ends")
        found: dict[str, Any] = self.stack.http.get(f"/v1/retunes/{retune_id}").json()
        return found

    def _step(self, retune_id: str) -> bool:
        retune_queue.start_due(self.context, challenge.start)
        retune_steps.drive(self.context, challenge.start, challenge.advance)
        with self.context.db.read() as session:
            row = retunes.get(session, retune_id)
            return row is not None and row.state == "ended"


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    folder = tmp_path_factory.mktemp("life")
    stack = Stack(folder)
    try:
        yield Life(stack, folder)
    finally:
        stack.close()


def test_a_challenge_costs_a_third_of_a_search_and_keeps_what_has_not_changed(life: Life) -> None:
    found = life.retune("manual")
    assert (found["outcome"], found["search_study_id"]) == ("kept", None), found["reason"]
    trials = life.stack.trials(found["challenge_study_id"])
    runs = sum(len(trial["runs"]) for trial in trials)
    print(f"search: {life.runs} runs; challenge: {runs} runs; {found['reason']}")
    assert 2 <= runs <= life.runs / 3
    renewed = life.stack.http.get("/v1/best", params={"study_key": life.case[1]}).json()
    assert renewed["study_id"] == found["challenge_study_id"] and renewed["freshness"] == "fresh"

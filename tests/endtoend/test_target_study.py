"""`shardtune tune --target` on two CPU ranks: real trials, then the fastest projected configurations built and stepped at 64
ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.endtoend.test_tune_command import shardtune
from tests.support.long_run import WIDE
from tests.support.processes.stack import study

pytestmark = [pytest.mark.ranks, WIDE]


def test_a_study_on_two_ranks_answers_for_64_and_has_built_its_answer_there(tmp_path: Path) -> None:
    workload = {"sequence_length": 32, "global_batch": 256, "precision": "fp32"}
    space = {"backends": ["fsdp1", "fsdp2"], "knobs": {"compile": False}}
    request = study(workload=workload, space=space, target="32x2")
    request["budget"] = {"max_trials": 2, "max_pairs": 7, "resume_check": False}
    (tmp_path / "study.json").write_text(json.dumps(request))
    done = shardtune("tune", "study.json", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    projection: dict[str, Any] = json.loads(done.stdout)["projection"]
    assert projection["cluster"]["nodes"] == 32
    first, second = projection["rehearsals"]
    assert first["config"] == projection["best"]["config"]
    for one in (first, second):
        assert (one["outcome"], one["problem"], one["ranks"]) == ("built", None, 64), one
        assert one["allocated_gib"] == pytest.approx(one["predicted_gib"], rel=0.5), one
    assert "rehearsal of trial" in done.stderr and "built and stepped" in done.stderr

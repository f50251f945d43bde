"""`shardtune tune` as its user runs it: one command, one JSON object, files that run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from tests.support.long_run import WIDE
from tests.support.processes.stack import study

pytestmark = pytest.mark.ranks

QUICK = {"parity_steps": 3, "max_warmup_steps": 2, "window_steps": 2, "min_windows": 3, "max_windows": 3}
QUICK |= {"min_measure_s": 0}
"""A user's runs are longer; there are some 20 of them."""
CONTENDER = {"config", "tokens_per_s_per_gpu", "peak_allocated_gib", "peak_reserved_gib"}


def shardtune(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shardtune", *arguments]
    environment = os.environ | {"SHARDTUNE_MEASURE": json.dumps(QUICK)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


def test_one_command_gives_one_answer_and_files_that_run(tmp_path: Path) -> None:
    # `make tune` searches all backends; the ranks of this one cost least.
    (tmp_path / "study.json").write_text(json.dumps(study(space={"backends": ["ddp"]})))
    done = shardtune("tune", "study.json", "--max-trials", "2", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["verdict"] in ("confirmed", "not_faster", "undecided", "too_busy")
    assert sum(answer["trials"].values()) == 2
    for contender in (answer["best"], answer["baseline"]):
        assert set(contender) == CONTENDER
        assert contender["tokens_per_s_per_gpu"] > 0 and contender["peak_reserved_gib"] is None
    if answer["speedup"] is None:
        pairs = answer["final_comparison"]["pairs"]
        assert answer["verdict"] in ("undecided", "too_busy") or (answer["verdict"] == "not_faster" and pairs > 0)
    else:
        low, high = answer["speedup"]["ci95"]
        assert low <= answer["speedup"]["value"] <= high
        comparison = answer["final_comparison"]
        is_disturbed = comparison["disturbed_counted_runs"] > 0 or comparison["uneven_pairs"] > 0
        assert (answer["verdict"] == "confirmed") == (low > 1) or (is_disturbed and answer["verdict"] == "too_busy")
    assert answer["trust"] and answer["baseline"] is not None
    assert answer["resume_check"]["outcome"] == "passed", answer["resume_check"]
    assert answer["resume_check"]["checkpoint_bytes"] > 0 and answer["resume_check"]["allocator_retries"] is None
    assert "best/config.json" in answer["exports"]
    assert all((tmp_path / path).is_file() for path in answer["exports"])

    again = shardtune("explain", "last", "--json", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    why = Diagnosis.model_validate_json(again.stdout)
    assert why.ranks == (0, 1) and why.recorded is not None and why.recorded.steps == 3
    assert why.recorded.foreign_cpu_cores is not None and why.recorded.host_cpu_cores
    assert sorted(path.name for path in Path(why.recorded.folder).iterdir()) == ["rank_0.json.gz", "rank_1.json.gz"]


def test_a_global_batch_that_nothing_divides_starts_nothing(tmp_path: Path) -> None:
    wrong = study(workload={"sequence_length": 32, "global_batch": 7, "precision": "fp32"})
    (tmp_path / "study.json").write_text(json.dumps(wrong))
    done = shardtune("tune", "study.json", folder=tmp_path)
    assert done.returncode == 2
    assert "global_batch" in done.stderr and "(7)" in done.stderr and "Traceback" not in done.stderr


@WIDE
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

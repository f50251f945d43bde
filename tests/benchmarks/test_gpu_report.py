"""`make test-gpu`: it ends at once where there is no GPU, and its report says what ran, what it proves and what is open."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu_report import __main__ as report
from benchmarks.gpu_report.outcomes import read_outcomes
from benchmarks.gpu_report.steps import OUTCOMES, TOTAL_S, Done, Step, run, steps
from benchmarks.gpu_report.verdict import CLAIMS, markdown, verdict

ROOT = Path(__file__).parents[2]
_TESTS = """
import pytest
def test_a_resumed_trial_continues_training(): pass
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_every_checkpointing_trains(mode): assert mode == "full"
def test_offload_trains(): pytest.skip("none")
"""
_LINES = """
trial 0 (1 of 6): ZeRO-2, micro batch 1 (a documented default): 1,200 tokens/s/GPU, 2.000 GiB, of which 1.86 GiB are DeepSpeed's gradient buffer (predicted 1,000, 2.500 GiB), best so far
"""


def test_without_a_gpu_it_ends_at_once_with_two_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert report.main(["--out", str(tmp_path / "report")]) == 2
    assert "needs a CUDA GPU: no CUDA device is visible" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


LAUNCH_S = 10.0
"""Seconds that a launch of a test may take on a GPU: CUDA's context, NCCL, the build, some steps, the end. An estimate;
on an H200 a trial of the tests took 8 s in the mean, beside its start and end (two sessions, 21 trials)."""
LAUNCHES_OF_A_TEST = 1.7
"""Launches per test of tests/gpu: 106 of 63 tests."""
CALLS = 3
"""Calls within which everything ends, where each step takes its whole limit and `tune` takes it twice."""


def test_three_calls_have_time_for_each_step_and_each_launch_of_the_tests(tmp_path: Path) -> None:
    *others, tests = steps(tmp_path, tmp_path / "study.json")
    assert tests.name == "tests" and sum(step.limit_s for step in others) <= TOTAL_S
    again_s = sum(step.limit_s for step in others if step.continued_by)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/gpu"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    items = sum(int(line.rpartition(": ")[2]) for line in listed.splitlines() if line.startswith("tests/gpu/"))
    needed_s = sum(step.limit_s for step in others) + again_s + items * LAUNCHES_OF_A_TEST * LAUNCH_S
    assert items > 40 and needed_s <= CALLS * TOTAL_S


def test_a_study_that_a_call_cut_is_continued_and_its_users_wait_for_it(tmp_path: Path) -> None:
    begin = ("bash", "-c", "echo trial 0; exec sleep 600")
    tune = Step("tune", 1, begin, "", continued_by=("echo", "trial 1"))
    users = (Step("export", 60, ("true",), "", needs="tune"), Step("tests", 60, ("true",), ""))
    first = report.run_steps(tmp_path, (tune, *users), ["H100"])
    assert [done.status for done in first] == ["late", "left out", "passed"]
    assert first[1].last_words == "tune has not ended"
    second = report.run_steps(tmp_path, (tune, *users), ["H100"])
    assert [done.status for done in second] == ["passed"] * 3
    assert second[0].output == "trial 0\ntrial 1\n"


def test_only_the_study_is_continued_and_by_the_option_that_changes_nothing(tmp_path: Path) -> None:
    planned = {step.name: step for step in steps(tmp_path, tmp_path / "study.json")}
    assert [name for name, step in planned.items() if step.continued_by] == ["tune"]
    begin, resume = planned["tune"].command, planned["tune"].continued_by
    assert set(begin) - set(resume) == {str(tmp_path / "study.json"), "--max-trials", "6"}
    assert set(resume) - set(begin) == {"--resume"}
    assert [name for name, step in planned.items() if step.needs] == ["export", "warm", "cold"]


def _pytest(folder: Path, outcomes: Path) -> "subprocess.Popen[bytes]":
    plugin = ["-p", "benchmarks.gpu_report.outcomes", "--outcomes", str(outcomes)]
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder), *plugin, str(folder)]
    # Without this repository's settings it would load every plugin that is installed; schemathesis's takes 2 s of a core.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made-up")
    (folder / "test_made_up.py").write_text(_TESTS)
    assert _pytest(folder, folder / OUTCOMES).wait() == 1
    return folder / OUTCOMES


def test_a_run_of_tests_that_is_killed_keeps_its_outcomes_and_the_next_continues(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    (tmp_path / "test_made_up.py").write_text(
        "import pathlib, time\ndef test_1(): pass\ndef test_2(): assert False\ndef test_3(): pass\n"
        f"def test_4():\n    first = not pathlib.Path('{reached}').exists()\n    pathlib.Path('{reached}').touch()\n"
        "    time.sleep(600 * first)\ndef test_5(): pass\n"
    )
    outcomes = tmp_path / OUTCOMES
    running = _pytest(tmp_path, outcomes)
    while not reached.exists():
        assert running.poll() is None
        time.sleep(0.05)
    running.kill()
    running.wait()
    kept = {"test_1": "passed", "test_2": "failed", "test_3": "passed"}
    assert read_outcomes(outcomes) == kept
    with outcomes.open("a") as file:
        file.write('{"test": "test_4", "outc')
    assert _pytest(tmp_path, outcomes).wait() == 1, "an earlier call's test has failed"
    assert read_outcomes(outcomes) == kept | {"test_4": "passed", "test_5": "passed"}


def test_a_call_that_ran_out_of_time_is_continued_by_the_next_and_then_forgotten(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    quick = Step("quick", 60, ("bash", "-c", f"echo quick >> {ran}"), "")
    slow = Step("slow", 60, ("bash", "-c", f"echo slow >> {ran}; [ -e {tmp_path}/again ] || sleep 600"), "")
    (tmp_path / OUTCOMES).write_text('{"test": "test_of_an_earlier_report", "outcome": "passed"}\n')
    first = report.run_steps(tmp_path, (quick, slow), ["H100"], total_s=4)
    assert [done.status for done in first] == ["passed", "late"] and not (tmp_path / OUTCOMES).exists()
    assert verdict(first, tmp_path / OUTCOMES, ["H100"])["unfinished"] == ["slow"]
    assert "once more continues there" in markdown(verdict(first, tmp_path / OUTCOMES, ["H100"]))
    (tmp_path / "again").touch()
    assert [done.status for done in report.run_steps(tmp_path, (quick, slow), ["H100"])] == ["passed", "passed"]
    assert ran.read_text().split() == ["quick", "slow", "slow"]
    report.run_steps(tmp_path, (quick, slow), ["H100"])
    assert ran.read_text().split() == ["quick", "slow", "slow", "quick", "slow"], "a finished report begins anew"


def test_what_an_earlier_call_kept_counts_on_the_same_cards_only(tmp_path: Path) -> None:
    failing = Step("slow", 1, ("sleep", "600"), "")
    quick = Step("quick", 60, ("bash", "-c", f"echo quick >> {tmp_path}/ran"), "")
    for cards in (["H100"], ["H200"]):
        report.run_steps(tmp_path, (quick, failing), cards)
    (tmp_path / "progress.json").write_text('{"cards": ["H200"], "done": 3}')
    report.run_steps(tmp_path, (quick, failing), ["H200"])
    assert (tmp_path / "ran").read_text().split() == ["quick"] * 3


def made_up(name: str, status: str = "passed", output: str = "", words: str = "") -> Done:
    return Done(Step(name, 1, (), "means"), status, 1.0, output, words)


def test_each_claim_is_proved_failed_or_open_by_what_ran(outcomes: Path) -> None:
    ran = [made_up("tests", "failed"), made_up("tune", output=_LINES), made_up("measure-hardware", "late", words="x")]
    ran += [made_up("warm", output='{"tokens_per_s_per_gpu": 10.0}'), made_up("cold", "failed")]
    actual_verdict = verdict(ran, outcomes, ["NVIDIA H100"])
    verdicts = {claim["says"]: claim["verdict"] for claim in actual_verdict["claims"]}
    assert verdicts["The answer can be resumed"] == "proved"
    assert verdicts["Selective and full checkpointing train with every backend"] == "failed"
    assert verdicts["Offloading to the host trains"] == verdicts["Compiled blocks train"] == "open"
    assert verdicts["The hardware is measured in a minute"] == "failed"
    assert not actual_verdict["passed"] and any("sharding" in line for line in actual_verdict["cannot_show"])
    assert actual_verdict["figures"]["predicted"] == [{"trial": 0, "speed_ratio": 1.2, "memory_ratio": 0.8}]
    assert actual_verdict["figures"]["tokens_per_s_per_gpu"] == {"warm": 10.0, "cold": None, "exported": None}
    text = markdown(json.loads(json.dumps(actual_verdict)))
    assert text.startswith("# Not passed: 1 × NVIDIA H100") and "1 skipped" in text
    assert "- failed: `test_every_checkpointing_trains[selective]`" in text
    assert "## Last words of measure-hardware" in text


def test_everything_passed_is_said_so_and_several_gpus_show_more(outcomes: Path, tmp_path: Path) -> None:
    full = tmp_path / OUTCOMES
    full.write_text(outcomes.read_text().replace("failed", "passed"))
    actual_verdict = verdict([made_up("tests")], full, ["NVIDIA H100"] * 8)
    assert actual_verdict["passed"] and not any("sharding" in line for line in actual_verdict["cannot_show"])
    assert not verdict([made_up("tests")], tmp_path / "none", ["NVIDIA H100"])["passed"]


def test_a_step_that_fails_or_takes_too_long_is_told_and_stops_no_other() -> None:
    late = run(Step("a", 0.5, ("bash", "-c", "echo so far; sleep 30"), ""), 60, {"PATH": "/usr/bin:/bin"})
    assert (late.status, late.output) == ("late", "so far\n")
    assert run(Step("b", 5, ("bash", "-c", "echo why >&2; exit 3"), ""), 60, {"PATH": "/usr/bin:/bin"}).last_words
    assert run(Step("c", 5, ("/nonexistent",), ""), 60, {}).status == "failed"
    assert run(Step("d", 5, ("true",), ""), 0.5, {}).status == "left out"


def test_a_late_step_takes_its_ranks_along_so_that_the_next_finds_its_gpus_free(tmp_path: Path) -> None:
    # As torchrun starts ranks: each in a session of its own.
    ranks = f"setsid sleep 600 & echo $! > {tmp_path}/pid; wait"
    assert run(Step("export", 0.5, ("bash", "-c", ranks), ""), 60, {"PATH": "/usr/bin:/bin"}).status == "late"
    rank = int((tmp_path / "pid").read_text())
    until_s = time.monotonic() + 5
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(rank).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until_s, "the rank outlived its step"
            time.sleep(0.05)


def test_the_claims_name_tests_and_pages_that_exist() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    recorded = {f"step:{step.name}" for step in steps(Path(), Path())}
    for claim in CLAIMS:
        assert (ROOT / claim.page).exists()
        assert all(
            item in recorded if item.startswith("step:") else f"def {item}" in tests for item in claim.evidence
        ), claim

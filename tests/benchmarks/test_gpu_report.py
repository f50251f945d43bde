"""`make test-gpu`: it ends at once where there is no GPU, and its report says what ran, what it proves and what is open."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_report import __main__ as report
from benchmarks.gpu_report.steps import Done, Step, run, steps
from benchmarks.gpu_report.verdict import CLAIMS, markdown, read_junit, verdict

ROOT = Path(__file__).parents[2]
_TESTS = """
import pytest
def test_a_resumed_trial_continues_training(): pass
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_every_checkpointing_trains(mode): assert mode == "full"
def test_offload_trains(): pytest.skip("none")
"""
_LINES = """
trial 0 (1 of 6): DDP, micro batch 1: 1,200 tokens/s/GPU, 2.000 GiB (predicted: 1,000 tokens/s/GPU, 2.500 GiB), best so far
"""


def test_without_a_gpu_it_ends_at_once_with_two_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert report.main(["--out", str(tmp_path / "report")]) == 2
    assert "needs a CUDA GPU: no CUDA device is visible" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_the_limits_of_the_steps_are_ten_minutes_in_all(tmp_path: Path) -> None:
    actual_steps = steps(tmp_path, tmp_path / "study.json")
    assert sum(step.limit_s for step in actual_steps) <= report.TOTAL_S


@pytest.fixture(scope="module")
def junit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("junit")
    (folder / "test_made_up.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder), str(folder)]
    subprocess.run([*command, f"--junitxml={folder / 'junit.xml'}"], check=False, capture_output=True, cwd=folder)
    return folder / "junit.xml"


def made_up(name: str, status: str = "passed", output: str = "", words: str = "") -> Done:
    return Done(Step(name, 1, (), "means"), status, 1.0, output, words)


def test_each_claim_is_proved_failed_or_open_by_what_ran(junit: Path) -> None:
    ran = [made_up("tests", "failed"), made_up("tune", output=_LINES), made_up("measure-hardware", "late", words="x")]
    ran += [made_up("warm", output='{"tokens_per_s_per_gpu": 10.0}'), made_up("cold", "failed")]
    actual_verdict = verdict(ran, junit, ["NVIDIA H100"])
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


def test_everything_passed_is_said_so_and_several_gpus_show_more(junit: Path, tmp_path: Path) -> None:
    full = tmp_path / "junit.xml"
    full.write_text(junit.read_text().replace("<failure", "<system-out").replace("</failure", "</system-out"))
    actual_verdict = verdict([made_up("tests")], full, ["NVIDIA H100"] * 8)
    assert actual_verdict["passed"] and not any("sharding" in line for line in actual_verdict["cannot_show"])
    assert not verdict([made_up("tests")], tmp_path / "none.xml", ["NVIDIA H100"])["passed"]


def test_a_step_that_fails_or_takes_too_long_is_told_and_stops_no_other() -> None:
    late = run(Step("a", 0.5, ("bash", "-c", "echo so far; sleep 30"), ""), 60, {"PATH": "/usr/bin:/bin"})
    assert (late.status, late.output) == ("late", "so far\n")
    assert run(Step("b", 5, ("bash", "-c", "echo why >&2; exit 3"), ""), 60, {"PATH": "/usr/bin:/bin"}).last_words
    assert run(Step("c", 5, ("/nonexistent",), ""), 60, {}).status == "failed"
    assert run(Step("d", 5, ("true",), ""), 0.5, {}).status == "left out"


def test_the_claims_name_tests_and_pages_that_exist() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    recorded = {f"step:{step.name}" for step in steps(Path(), Path())}
    for claim in CLAIMS:
        assert (ROOT / claim.page).exists()
        assert all(
            item in recorded if item.startswith("step:") else f"def {item}" in tests for item in claim.evidence
        ), claim


def test_a_junit_file_that_is_not_whole_is_none(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text("<testsuite><testcase")
    assert read_junit(tmp_path / "junit.xml") == {}

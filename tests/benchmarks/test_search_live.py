"""Studies beside a whole space: what a folder holds is compared, and a space that is not measured whole is rejected."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.search.__main__ import main
from benchmarks.search.table import read

FULL_TABLE = Path(__file__).parents[2] / "benchmarks" / "data" / "search" / "llama-2-ranks-whole"


@pytest.fixture(scope="module")
def configurations():
    """Number of configurations of the space."""
    return len(read(FULL_TABLE).space.measured)


@pytest.fixture
def folder(tmp_path):
    """A copy that a test may spoil."""
    return Path(shutil.copytree(FULL_TABLE, tmp_path / "whole"))


def test_answers_are_held_against_the_fastest_of_the_space_by_runs_beside_each_other(folder, configurations, capsys):
    arguments = ["--live", str(folder), "--rounds", "1", "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["configurations"] == configurations >= 200
    assert [row["place"] for row in printed["fastest"]] == list(range(1, len(printed["fastest"]) + 1))
    assert len(printed["studies"]) == 3 and all(sum(row["trials"].values()) <= 6 for row in printed["studies"])
    shares = [row["fresh_share"] for row in [*printed["fastest"], *printed["studies"]]]
    assert max(shares) == 1.0

    lines = (folder / "fresh.csv").read_text().splitlines()
    answer = json.loads((folder / "study-1.json").read_text())["best"]["config"]
    slower = [line for line in csv.DictReader(lines) if json.loads(line["config"])["strategy"]["kind"] != "ddp"]
    assert answer["strategy"]["kind"] == "ddp" and slower
    with (folder / "fresh.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, ["config", "round", "step_time_s"])
        writer.writeheader()
        for line in csv.DictReader(lines):
            own = json.loads(line["config"])["strategy"]["kind"] == "ddp"
            writer.writerow(line | {"step_time_s": str(float(line["step_time_s"]) * (1.5 if own else 1.0))})
    assert main(arguments[:-1]) == 0
    stdout = capsys.readouterr().out
    assert 'studies 1: {"strategy": {"kind": "ddp"' in stdout and "NOT within 3 %" in stdout


def test_a_space_that_is_not_measured_whole_is_rejected(folder, configurations, capsys):
    lines = (folder / "runs.csv").read_text().splitlines()
    (folder / "runs.csv").write_text("\n".join(lines[:-5]) + "\n")
    assert main(["--live", str(folder), "--rounds", "1", "--minutes", "0"]) == 2
    assert f"holds {configurations - 5} of the {configurations} configurations" in capsys.readouterr().err

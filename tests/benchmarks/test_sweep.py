"""Published sweeps as replay tables: every row is there, all samplers choose among them behind one gate, bad files are named."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.parallel.__main__ import FILES
from benchmarks.parallel.prediction import predict
from benchmarks.search import sweep
from benchmarks.search.__main__ import main
from benchmarks.search.replay import replay
from benchmarks.search.samplers import Guided
from benchmarks.search.sweep import Sweep
from tests.support.long_run import IS_LONG

NANOTRON, ALEPH = FILES


@pytest.fixture(scope="module")
def tables() -> list[Sweep]:
    return [table for file in FILES for table in sweep.read(file)]


def some(tables: list[Sweep]) -> list[Sweep]:
    """Every third table; all of them in the long run."""
    return tables if IS_LONG else tables[::3]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The rows of 1B on 8 GPUs."""
    head, *lines = NANOTRON.read_text().splitlines()
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join([head, *(line for line in lines if line.startswith("1B,H100-80GB,8,"))]))
    return path


def test_every_row_of_a_table_can_be_chosen(tables: list[Sweep]) -> None:
    """Tables in which nothing ran are left out (80B on 8 GPUs)."""
    with NANOTRON.open() as nanotron, ALEPH.open() as aleph:
        rows = [row for row in csv.DictReader(nanotron) if (row["model"], row["n_gpus"]) != ("80B", "8")]
        rows += list(csv.DictReader(aleph))
    assert sum(len(runs) for table in tables for runs in table.runs.values()) == len(rows)
    for table in some(tables):
        assert len({table.space.key(config) for config in table.space.measured}) == len(table.space.measured)
        assert [table.space.unflatten(table.space.flatten(config)) for config in table.space.measured] == list(
            table.space.measured
        )


def test_who_draws_knob_by_knob_gets_a_row(tables: list[Sweep]) -> None:
    for table in some(tables):
        drawn = [table.space.sample(lambda _, values, at=at: values[at % len(values)]) for at in range(12)]
        assert set(drawn) <= set(table.space.measured) and len(set(drawn)) > 1


def test_what_is_predicted_is_what_benchmarks_parallel_predicts(tables: list[Sweep]) -> None:
    for table in some(tables):
        pool, memory = table.pool(), table.memory([])
        for config in table.space.measured[:10]:
            row = table.rows[config.content_key()]
            seconds = pool.parts[pool.rows([config])[0]].sum()
            (prediction,) = predict([row])
            assert seconds == pytest.approx(prediction.seconds)
            fits = prediction.bytes_needed <= row.training.memory_bytes
            assert (table.gate(config, memory) is None) == fits


def test_the_first_guided_trial_is_the_fastest_by_prediction_that_fits(tables: list[Sweep]) -> None:
    for table in some(tables):
        new_replay = replay(table, Guided()(table, 0), 0, 1)
        rows = list(table.rows.values())
        fitting = [
            prediction.seconds
            for row, prediction in zip(rows, predict(rows), strict=True)
            if prediction.bytes_needed <= row.training.memory_bytes
        ]
        (chosen,) = predict([table.rows[new_replay.history[0].config.content_key()]])
        assert chosen.seconds == pytest.approx(min(fitting))


def test_samplers_are_compared_on_a_sweep(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["guided", "tpe", "random", "deepspeed_grid"]
    assert main(["--sweep", str(small), "--seeds", "2", "--sampler", *names, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (created,) = printed["tables"]
    assert created["table"] == "1B, 8 H100" and created["configurations"] == len(sweep.read(small)[0].space.measured)
    assert 0 < created["feasible"] < created["configurations"] and set(created["samplers"]) == set(names)
    assert created["samplers"]["guided"]["trials_to_3pct"]["median"] <= 3
    assert printed["overall"]["guided"]["tables"] == 1 and printed["overall"]["random"]["median"] > 3


def test_curves_of_a_sweep_are_files_with_plain_names(small: Path, tmp_path: Path) -> None:
    arguments = ["--sweep", str(small), "--seeds", "1", "--sampler", "random", "--curves", str(tmp_path / "curves")]
    assert main(arguments) == 0
    assert [path.name for path in (tmp_path / "curves").iterdir()] == ["search-1B-8-H100.svg"]


def test_a_table_whose_rows_the_gate_rejects_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = NANOTRON.read_text().partition("\n")[0]
    (tmp_path / "one.csv").write_text(head + "\n80B,H100-80GB,8,1,256,8,1,1,64,1,0,ok,1,1,100,1\n")
    assert main(["--sweep", str(tmp_path / "one.csv"), "--seeds", "1", "--sampler", "guided", "random", "--json"]) == 0
    (created,) = json.loads(capsys.readouterr().out)["tables"]
    assert created["samplers"]["guided"]["trials_to_3pct"]["median"] is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("tokens_per_s,", "tokens,", 1), "columns (tokens_per_s) are missing"),
        (lambda text: text.replace("1B,", "7B,"), "line (2)"),
        (lambda text: text.replace(",256,", ",0,"), "gbs_sequences (0) must be at least 1"),
        (lambda text: text + "\n1B,H100", "line ("),
        (lambda text: text.replace(",ok,", ",crashed_or_oom,"), "no row ran"),
    ],
    ids=["column", "model", "batch", "short line", "nothing ran"],
)
def test_a_file_that_is_no_sweep_is_rejected(small: Path, change, why, capsys: pytest.CaptureFixture[str]) -> None:
    small.write_text(change(small.read_text()))
    assert main(["--sweep", str(small), "--sampler", "random"]) == 2
    error = capsys.readouterr().err
    assert str(small) in error and why in error


def test_what_else_cannot_be_replayed_is_rejected(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--sweep", str(tmp_path / "none.csv")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["--sweep", str(small), "--sampler", "hebo"]) == 2
    assert "--sampler (hebo) is unknown" in capsys.readouterr().err
    assert main(["--sweep", str(small), str(small), "--sampler", "random"]) == 2
    assert "given twice" in capsys.readouterr().err
    assert main(["--sweep", str(small), "--after", str(tmp_path)]) == 2
    assert "another machine" in capsys.readouterr().err

"""The replay of measured tables: what it reads, what it rejects, and what it counts."""

import csv
import itertools
import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.search.__main__ import main
from benchmarks.search.scores import noise, random_curve, random_median
from benchmarks.search.table import config_of, read
from shardtune.service.cli.errors import InputError

TABLE = Path(__file__).parents[2] / "benchmarks" / "data" / "search" / "llama-2-ranks"


@pytest.fixture
def table(tmp_path):
    """A copy that a test may spoil."""
    return Path(shutil.copytree(TABLE, tmp_path / "table"))


def rows(folder):
    with (folder / "runs.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def write(folder, lines):
    with (folder / "runs.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def test_a_replay_prints_what_each_sampler_needed(capsys):
    assert (
        main(["--table", str(TABLE), "--seeds", "2", "--sampler", "guided", "random", "deepspeed_grid", "--json"]) == 0
    )
    (created,) = json.loads(capsys.readouterr().out)["tables"]
    assert created["table"] == "llama-2-ranks" and created["configurations"] == len(read(TABLE).space.measured)
    assert set(created["samplers"]) == {"guided", "random", "deepspeed_grid"}
    guided = created["samplers"]["guided"]
    assert set(guided["trials_to_3pct"]) == {"p10", "median", "p90"} and set(guided["share_of_best_after"]) == {
        "5",
        "10",
        "20",
    }
    assert guided["gpu_seconds_to_3pct"]["median"] > 0 and 0 <= guided["infeasible_share"] <= 1 and guided["ask_ms"] > 0
    assert guided["area_of_regret_20"] < created["samplers"]["random"]["area_of_regret_20"]


def test_curves_are_drawn_for_each_table(tmp_path, capsys):
    assert main(["--table", str(TABLE), "--seeds", "1", "--sampler", "guided", "--curves", str(tmp_path)]) == 0
    drawn = ElementTree.fromstring((tmp_path / "search-llama-2-ranks.svg").read_text())
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 and all(len(line.attrib["points"].split()) == 20 for line in lines)


def test_a_study_after_another_begins_with_what_that_one_has_shown(table, capsys):
    """A copy of the table under another name is an equal neighbour: at most half of the trials of a cold search."""
    arguments = ["--table", str(TABLE), "--after", str(table), "--seeds", "3", "--sampler", "guided", "--json"]
    assert main(arguments) == 0
    samplers = json.loads(capsys.readouterr().out)["tables"][0]["samplers"]
    cold, warm = (samplers[name]["trials_to_3pct"]["median"] for name in ("guided", "guided_after"))
    assert warm <= cold / 2


def test_a_table_recorded_before_the_precision_was_renamed_is_read(table):
    study = json.loads((table / "study.json").read_text())
    study["workload"]["recipe"] = study["workload"].pop("precision")
    (table / "study.json").write_text(json.dumps(study))
    assert read(table).workload == read(TABLE).workload


@pytest.mark.parametrize("name", ["study.json", "profile.json", "hardware.json", "runs.csv"])
def test_a_missing_file_is_named(table, name, capsys):
    (table / name).unlink()
    assert main(["--table", str(table)]) == 2
    assert f"has no {name}" in capsys.readouterr().err


def test_a_configuration_outside_the_space_is_named(table, capsys):
    lines = rows(table)
    lines[0]["config"] = json.dumps({"strategy": {"kind": "ddp"}, "micro_batch": 3})
    write(table, lines)
    assert main(["--table", str(table)]) == 2
    error = capsys.readouterr().err
    assert "outside the study's space" in error and "micro_batch (3)" in error and "widen space" in error


@pytest.mark.parametrize(
    ("column", "value", "word"),
    [
        ("config", "{", "is not JSON"),
        ("config", '{"strategy": {"kind": "dpp"}}', "config."),
        ("step_time_s", "fast", "step_time_s"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(table, column, value, word):
    lines = rows(table)
    lines[2] |= {column: value, "failure": ""}
    write(table, lines)
    with pytest.raises(InputError, match="line 4") as error:
        read(table)
    assert word in str(error.value)


def test_an_unknown_sampler_is_named(capsys):
    assert main(["--table", str(TABLE), "--sampler", "hebo"]) == 2
    assert "--sampler (hebo) is unknown; use one of guided" in capsys.readouterr().err


def test_a_configuration_that_failed_or_took_too_much_memory_is_no_answer(table):
    text = read(table)
    (key, _), *_ = sorted(text.speeds.items(), key=lambda speed: -speed[1])
    lines = rows(table)
    spoilt = [text.space.key(config) == key for config in _configs(lines)]
    for line, is_it in zip(lines, spoilt, strict=True):
        if is_it:
            line |= {"failure": "oom: out of memory", "step_time_s": ""}
    write(table, lines)
    assert read(table).best < text.best and key not in read(table).seconds
    small = json.loads((table / "study.json").read_text())
    small["cluster"]["memory_gib"] = sorted(float(line["peak_allocated_mib"]) for line in rows(TABLE))[30] / 1024
    (table / "study.json").write_text(json.dumps(small))
    assert 0 < len(read(table).seconds) < len(text.seconds)


def _configs(lines):
    return [config_of(line["config"], "test") for line in lines]


def test_how_far_runs_of_one_configuration_lie_apart_is_told_where_one_was_run_twice(table):
    assert noise(read(table)) is None
    lines = rows(table)
    again = lines[0] | {"round": "2", "step_time_s": str(float(lines[0]["step_time_s"]) * 1.2)}
    write(table, [*lines, again])
    assert noise(read(table)) == pytest.approx(math.log(1.2) / math.sqrt(2), abs=1e-3)


def test_random_search_is_counted_exactly():
    shares = [0.2, 0.5, 0.5, 0.9, 1.0]
    for drawn in range(1, 6):
        draws = list(itertools.combinations(shares, drawn))
        assert random_curve(shares)[drawn - 1] == pytest.approx(sum(map(max, draws)) / len(draws))
    assert random_median(1, 9) == 5 and random_median(9, 9) == 1

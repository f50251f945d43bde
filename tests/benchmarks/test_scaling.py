"""The scaling command: its format, its targets on published rows, what it reads, and bad input."""

import json
from csv import DictReader
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.predictor.rows import hardware_aliases, read
from benchmarks.scaling import __main__ as command
from benchmarks.scaling.groups import DATA, published
from benchmarks.scaling.pairs import errors_by_source
from benchmarks.scaling.scores import score
from shardtune.tuner.prediction.candidates import from_rows
from shardtune.tuner.prediction.throughput import step_times
from shardtune.tuner.projection.published_errors import PUBLISHED_ERRORS

INTERNEVO = DATA / "internevo_scaling.csv"


@pytest.fixture(scope="module")
def scored() -> dict[str, Any]:
    return score(command.FILES)


def test_targets_hold_on_published_rows(scored: dict[str, Any]) -> None:
    factors = scored["by_factor"]
    assert scored["pairs"] >= 140 and scored["sources"] >= 7
    assert scored["median_error"] <= 0.03
    assert (
        factors["2"]["p90_error"] <= 0.08
        and factors["4-8"]["p90_error"] <= 0.08
        and factors["16+"]["p90_error"] <= 0.15
    )
    assert scored["p90_error"] < scored["same_per_gpu"]["p90_error"] / 2
    # Up to 2x, 85 % are wanted and missed (docs/measurements/scaling.md).
    lowest_coverage = {"2": 0.81}
    assert scored["coverage_90"] >= 0.84
    assert all(figures["coverage_90"] >= lowest_coverage.get(name, 0.84) for name, figures in factors.items())
    assert max(figures["coverage_90"] for figures in (scored, *factors.values())) <= 0.97
    losing = scored["losing"]
    assert losing["median_error"] <= losing["same_per_gpu"]["median_error"] / 2
    assert losing["p90_error"] <= losing["same_per_gpu"]["p90_error"] / 2


def test_a_layout_chosen_from_small_sizes_is_nearly_the_best_at_128_gpus(scored: dict[str, Any]) -> None:
    choice = scored["choice"]
    assert choice["tables"] == 4
    assert choice["regret_median"] <= 0.05 and choice["regret_p90"] <= 0.15
    assert choice["random"]["regret_median"] > 1


def test_a_run_that_loses_with_each_rank_is_foretold_from_128_to_1024_gpus(scored: dict[str, Any]) -> None:
    found = {ladder["configuration"]: ladder for ladder in scored["ladders"] if ladder["gpus"] == 1024}
    assert len(found) == 3
    for ladder in found.values():
        assert ladder["anchors"] == (8, 16, 32, 64, 128) and abs(ladder["error"]) <= 0.10
    whole = next(ladder for name, ladder in found.items() if "sharded over all" in name)
    assert 0.002 < whole["seconds_per_rank"] < 0.003 and whole["same_per_gpu"] > 0.5


def test_the_shipped_errors_are_those_of_the_published_rows() -> None:
    errors = errors_by_source(published(INTERNEVO))
    (source,) = errors
    recorded = PUBLISHED_ERRORS[source.partition(":")[0]]
    assert np.array(errors[source]) == pytest.approx(np.array(recorded), abs=0.01), (
        "run python -m benchmarks.scaling.learn"
    )


@pytest.mark.parametrize(
    ("note", "gigabits_per_gpu"),
    [
        ("4x100 Gb/s RoCE", 50),
        ("8x200 Gb/s IB per node", 200),
        ("400 Gb/s RDMA per GPU", 400),
        ("1600 Gb/s RoCE between nodes", 200),
        ("800 Gb/s per node", 100),
    ],
)
def test_a_network_of_several_adapters_counts_them_all(note: str, gigabits_per_gpu: int) -> None:
    with INTERNEVO.open(newline="") as lines:
        row = next(DictReader(lines))
    row["notes"] = f"status=ok; tok=published | inter-node {note}"
    case = read(row, hardware_aliases(DATA / "hardware.csv"))
    assert case.gpu.network_bytes_per_s == gigabits_per_gpu * 1e9 / 8


def test_copies_of_a_shard_group_exchange_gradients_over_nodes() -> None:
    with INTERNEVO.open(newline="") as lines:
        rows = {row["id"]: row for row in DictReader(lines)}
    cases = [read(rows[f"internevo-z1-{number}"], hardware_aliases(DATA / "hardware.csv")) for number in ("009", "013")]
    one_node, sixteen = (
        step_times(
            case.shape, from_rows([case.candidate]), case.dtypes, case.implementation, case.rates, case.network
        ).communication[0]
        for case in cases
    )
    assert sixteen > 1.5 * one_node


@pytest.mark.parametrize("text", ["", "model,gpu\n1B,H100\n"])
def test_a_file_in_neither_format_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert command.main(["--data", str(tmp_path / "rows.csv")]) == 2
    assert "are missing; keep the header of published.csv" in capsys.readouterr().err
    assert command.main(["--data", str(tmp_path / "none.csv")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--data", str(INTERNEVO), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {
        "pairs",
        "median_error",
        "p90_error",
        "coverage_90",
        "same_per_gpu",
        "losing",
        "by_factor",
        "choice",
    } <= set(printed)
    assert printed["choice"]["tables"] == 0 and set(printed["by_factor"]) == {"2", "4-8", "16+"}

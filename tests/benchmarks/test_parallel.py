"""Layouts of published sweeps put in order by prediction alone: the bars, and files that cannot be read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parallel import __main__ as parallel
from benchmarks.parallel.layout import blocks_of_stages, parameters_of_stages
from benchmarks.parallel.memory import peak_bytes
from benchmarks.parallel.tables import Measured, read
from benchmarks.parallel.time import step_seconds

NANOTRON, ALEPH = parallel.FILES


@pytest.fixture(scope="module")
def overall() -> dict[str, Any]:
    values: dict[str, Any] = parallel.report(parallel.FILES)["overall"]
    return values


def test_layouts_of_nanotron_are_found_in_few_trials(overall: dict[str, Any]) -> None:
    nanotron_sweep = overall["nanotron_sweep"]
    assert nanotron_sweep["tables"] == 11 and nanotron_sweep["spearman_median"] >= 0.75
    assert nanotron_sweep["trials_median"] <= 4 and nanotron_sweep["trials_worst"] <= 15
    assert nanotron_sweep["gate_accepts"] >= 0.99 and nanotron_sweep["gate_rejects"] >= 0.75


def test_layouts_of_aleph_alpha_are_found_in_few_trials(overall: dict[str, Any]) -> None:
    aleph_alpha_layouts = overall["aleph_alpha_layouts"]
    assert (
        aleph_alpha_layouts["tables"] == 5
        and aleph_alpha_layouts["spearman_median"] >= 0.88
        and aleph_alpha_layouts["trials_median"] <= 3
    )
    assert aleph_alpha_layouts["gate_accepts"] >= 0.97 and aleph_alpha_layouts["gate_rejects"] >= 0.85


@pytest.fixture(scope="module")
def rows() -> list[Measured]:
    return read(NANOTRON)["8B, 32 H100"]


def test_no_block_and_no_parameter_is_lost_between_stages(rows: list[Measured]) -> None:
    for row in rows:
        shape, layout = row.training.shape, row.layout
        assert sum(blocks_of_stages(row.training, layout.pp)) == shape.layers
        reserved = sum(parameters_of_stages(row.training, layout)) * layout.tp
        assert reserved == pytest.approx(shape.parameters, rel=1e-3), "norms apart"


def test_what_must_hold_of_every_layout(rows: list[Measured]) -> None:
    """Larger micro batches take more memory while the pipeline is full, sharded moments less; slower links no less time."""
    for row in rows:
        training, layout = row.training, row.layout
        twice = replace(layout, micro_batch=2 * layout.micro_batch)
        slower = replace(training, network=replace(training.network, intra=training.network.intra / 2))
        if twice.micro_batches(training) >= layout.pp:
            assert peak_bytes(training, twice) > peak_bytes(training, layout)
        assert peak_bytes(training, layout) >= peak_bytes(training, replace(layout, zero=True))
        assert step_seconds(slower, layout) >= step_seconds(training, layout) > 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "are missing; keep the header"),
        (NANOTRON.read_text().partition("\n")[0] + "\n7B,H100-80GB,8,1,256,8,1,1,1,32,0,ok,1,1,1,1\n", "line (2)"),
    ],
    ids=["columns", "model"],
)
def test_a_file_that_cannot_be_read_is_rejected(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.csv").write_text(text)
    assert parallel.main(["--data", str(tmp_path / "sweep.csv"), "--json"]) == 2
    assert why in capsys.readouterr().err
    assert parallel.main(["--data", str(tmp_path / "none.csv")]) == 2


def test_it_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines = NANOTRON.read_text().splitlines()
    (tmp_path / "sweep.csv").write_text("\n".join([head, *lines[:40]]))
    assert parallel.main(["--data", str(tmp_path / "sweep.csv"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tables"][0]["table"] == "1B, 8 H100" and printed["tables"][0]["feasible"] > 0

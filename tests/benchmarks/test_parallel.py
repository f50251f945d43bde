"""Layouts of published sweeps put in order by prediction alone: the bars, and files that cannot be read."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parallel import __main__ as parallel
from benchmarks.parallel.layout import Training
from benchmarks.parallel.prediction import predict
from benchmarks.parallel.tables import Measured, read
from shardtune.tuner.prediction.stages import StageLayout, blocks_by_cost, rank_shapes
from tests.support.long_run import IS_LONG

NANOTRON, ALEPH = parallel.FILES


@pytest.fixture(scope="module")
def overall() -> dict[str, Any]:
    values: dict[str, Any] = parallel.report(parallel.FILES)["overall"]
    return values


def test_layouts_of_nanotron_are_found_in_few_trials(overall: dict[str, Any]) -> None:
    nanotron_sweep = overall["nanotron_sweep"]
    assert nanotron_sweep["tables"] == 11 and nanotron_sweep["spearman_median"] >= 0.80
    assert nanotron_sweep["trials_median"] <= 2 and nanotron_sweep["trials_worst"] <= 20
    assert nanotron_sweep["gate_accepts"] >= 0.99 and nanotron_sweep["gate_rejects"] >= 0.80


def test_layouts_of_aleph_alpha_are_found_in_few_trials(overall: dict[str, Any]) -> None:
    aleph_alpha_layouts = overall["aleph_alpha_layouts"]
    assert aleph_alpha_layouts["tables"] == 5 and aleph_alpha_layouts["spearman_median"] >= 0.87
    assert aleph_alpha_layouts["trials_median"] <= 2 and aleph_alpha_layouts["trials_worst"] <= 4
    assert aleph_alpha_layouts["speed_median_ape"] <= 0.08
    assert aleph_alpha_layouts["gate_accepts"] >= 0.97 and aleph_alpha_layouts["gate_rejects"] >= 0.85


@pytest.fixture(scope="module")
def rows() -> list[Measured]:
    return read(NANOTRON)["8B, 32 H100"]


def test_no_block_and_no_parameter_is_lost_between_stages(rows: list[Measured]) -> None:
    for row in rows:
        shape, stages = row.training.shape, row.layout.pp
        parts = rank_shapes(shape, StageLayout(stages), by_cost=True)
        counts = blocks_by_cost(shape, stages)
        assert sum(counts) == shape.layers
        # The last stages may have the head, or nothing, and no block; they are predicted as stages of one block.
        assert [part.layers for part in parts] == [max(1, count) for count in counts]
        added = counts.count(0) * shape.block_parameters
        assert sum(part.parameters for part in parts) == shape.parameters + added


def test_the_benchmark_holds_no_formula() -> None:
    """Numbers of bytes, FLOPs and seconds come from `tuner.prediction` alone."""
    folder = Path(parallel.__file__).parent
    assert {path.name for path in folder.glob("*.py")} == {
        "__init__.py", "__main__.py", "layout.py", "leave_out.py", "prediction.py", "tables.py", "twins.py",
    }  # fmt: skip
    called = (folder / "prediction.py").read_text()
    assert "step_times(" in called and "peak_memory(" in called
    for path in folder.glob("*.py"):
        assert not {"flops", "bandwidth", "block_parameters"} & set(re.findall(r"[a-z_]+", path.read_text())), path


def test_errors_on_agreeing_twins_where_the_world_was_left_out_of_the_fit() -> None:
    """Medians over the rows whose twin agrees within 10 %, per number of GPUs."""
    worlds = parallel.by_world(read(NANOTRON), only=(8, 32, 128))
    assert [worlds[world]["agreeing_rows"] for world in ("8", "32", "128")] == [24, 32, 84]
    for world, limit in (("8", 0.15), ("32", 0.20), ("128", 0.30)):
        assert worlds[world]["speed_median_ape"] <= limit and abs(worlds[world]["signed"]) <= 0.10
        assert worlds[world]["fitted_elsewhere"] is not None


def on_slower_links(training: Training) -> Training:
    return replace(training, network=replace(training.network, intra=training.network.intra / 2))


def test_what_must_hold_of_every_layout(rows: list[Measured]) -> None:
    """Larger micro batches take more memory while the pipeline is full, sharded moments less; slower links no less time."""
    chosen = rows if IS_LONG else rows[::3]
    # Rows of one training are predicted together: the calls cost, not the rows.
    own = predict(chosen)
    sharded = predict([replace(row, layout=replace(row.layout, zero=True)) for row in chosen])
    slow = predict([replace(row, training=on_slower_links(row.training)) for row in chosen])
    for one, sharded_one, slow_one in zip(own, sharded, slow, strict=True):
        assert one.bytes_needed >= sharded_one.bytes_needed
        assert slow_one.seconds >= one.seconds > 0
    doubled = {number: replace(row.layout, micro_batch=2 * row.layout.micro_batch) for number, row in enumerate(chosen)}
    full = [number for number, layout in doubled.items() if layout.micro_batches(chosen[number].training) >= layout.pp]
    larger = predict([replace(chosen[number], layout=doubled[number]) for number in full])
    assert full
    for number, larger_one in zip(full, larger, strict=True):
        assert larger_one.bytes_needed > own[number].bytes_needed


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

"""The laboratory's pure parts: order of programs, rejections, projections from stored measurements, and bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.laboratory import __main__ as command
from benchmarks.laboratory.answer import answer
from benchmarks.laboratory.foretell import foretell, predicted_sizes
from benchmarks.laboratory.programs import PROGRAMS, TOKENS
from benchmarks.laboratory.runs import Measurements, Run
from benchmarks.laboratory.scores import Judged, changing_pairs, rejection, summary
from shardtune.api_schemas.machines.hardware import CollectiveTime, MeasuredHardware
from shardtune.tuner.projection.project import ProjectedValue

LINK_BYTES_PER_S = 50e6 / 8
SIZES = (1, 2, 4, 8)


def collectives() -> tuple[CollectiveTime, ...]:
    return tuple(
        CollectiveTime(
            operation=operation, bytes=size, seconds=passes * 0.75 * size / LINK_BYTES_PER_S + 1e-4, ranks=4, nodes=4
        )
        for operation, passes in (("all_gather", 1), ("reduce_scatter", 2), ("all_reduce", 2))
        for size in (1 << 14, 1 << 17, 1 << 20)
    )


def as_predicted() -> Measurements:
    """Measurements that agree with the predictor."""
    hardware = MeasuredHardware(
        bf16_flops=1e9, fp32_flops=1e9, copy_bytes_per_s=1e9, launch_s=1e-6, collectives=collectives()
    )
    empty = Measurements(50, 0.0, 8, hardware, 4, (), (0.5,))
    alone = replace(empty, runs=(Run("ddp", 1, (0.72,) * 4, (0.01,)),))
    runs = tuple(
        Run(name, hosts, (size.seconds,) * 4, (0.04,) * hosts)
        for name in PROGRAMS
        for hosts, size in predicted_sizes(alone, name, SIZES).items()
    )
    return replace(empty, runs=runs)


def judged(name: str, measured: float, projected: float, smaller: dict[int, float]) -> Judged:
    band = ProjectedValue(projected, projected * 0.95, projected * 1.05)
    return Judged(name, measured, band, smaller[max(smaller)], smaller)


def test_each_program_gives_a_rank_the_same_tokens_on_any_number_of_hosts() -> None:
    measurements = as_predicted()
    for name, program in PROGRAMS.items():
        sizes = predicted_sizes(measurements, name, SIZES)
        assert list(sizes) == [hosts for hosts in SIZES if hosts >= program.fewest_hosts]
        assert [size.gpus for size in sizes.values()] == list(sizes)
        expected = TOKENS * (2 if name == "ddp-accumulation" else 1)
        assert {size.tokens_per_gpu for size in sizes.values()} == {expected}, name


def test_where_hosts_agree_with_the_predictor_a_projection_is_off_by_the_drift_alone() -> None:
    measurements = as_predicted()
    result = answer(measurements)
    assert result["summary"]["programs"] == len(PROGRAMS) and result["summary"]["rejected"] == 0
    assert result["summary"]["worst_error"] < 0.02
    assert result["summary"]["inside_band"] == 1.0
    assert result["summary"]["pairs_ordered_right"] == result["summary"]["pairs"] > 10


def test_slower_links_have_ranks_wait_as_much_longer() -> None:
    program = PROGRAMS["ddp-accumulation"]
    assert program.waiting_s(50) == pytest.approx(1.44) and program.waiting_s(25) == pytest.approx(2.88)


def test_what_was_measured_on_the_target_changes_no_projection() -> None:
    measurements = as_predicted()
    without = replace(measurements, runs=tuple(run for run in measurements.runs if run.hosts < 8))
    assert foretell(measurements, 8) == foretell(without, 8)


def test_ranks_that_use_the_cores_are_not_judged() -> None:
    assert rejection({2: 0.1, 8: 0.39}, {8: 0.06}, 0.01) is None
    assert rejection({2: 0.41, 8: 0.3}, {8: 0.0}, None) == {
        "reason_code": "cores",
        "hosts": 2,
        "value": 0.41,
        "most": 0.4,
    }
    measurements = as_predicted()
    busy = tuple(
        replace(run, cores=(0.06,) * 8) if (run.program, run.hosts) == ("ddp", 8) else run for run in measurements.runs
    )
    result = answer(replace(measurements, runs=busy))
    row = next(row for row in result["programs"] if row["program"] == "ddp")
    assert not row["is_judged"]
    assert row["rejection"] == {"reason_code": "cores", "hosts": 8, "value": 0.48, "most": 0.4}
    assert result["summary"]["rejected"] == 1 and result["summary"]["programs"] == len(PROGRAMS) - 1
    assert result["with_rejected"]["programs"] == len(PROGRAMS)


def test_late_and_unsteady_steps_are_not_judged() -> None:
    late, unsteady = rejection({1: 0.1, 8: 0.2}, {}, 0.2), rejection({8: 0.2}, {4: 0.01, 8: 0.09}, 0.02)
    assert late == {"reason_code": "late", "hosts": 1, "value": 0.2, "most": 0.05}
    assert unsteady == {"reason_code": "unsteady", "hosts": 8, "value": 0.09, "most": 0.07}


def test_pairs_count_from_five_per_cent_on_and_by_the_order_that_was_measured() -> None:
    programs = [
        judged("first", 100.0, 90.0, {2: 100.0, 4: 100.0}),
        judged("close", 97.0, 95.0, {2: 100.0, 4: 100.0}),
        judged("last", 80.0, 92.0, {2: 120.0, 4: 100.0}),
    ]
    figures = summary(programs)
    assert figures["pairs"] == 2 and figures["pairs_ordered_right"] == 1
    assert changing_pairs(programs) == [
        {"faster": "first", "slower": "last", "other_order_on_hosts": [2], "is_foretold": False},
        {"faster": "close", "slower": "last", "other_order_on_hosts": [2], "is_foretold": True},
    ]


def test_without_a_judged_program_there_are_no_figures() -> None:
    assert summary([]) == {"programs": 0}


def test_stored_measurements_are_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measurements, path = as_predicted(), tmp_path / "measured.json"
    measurements.save(path)
    assert Measurements.load(path) == measurements
    assert command.main(["--from", str(path), "--json"]) == command.DONE
    printed = json.loads(capsys.readouterr().out)
    assert printed["target_hosts"] == 8 and printed["runs_of_target"] == {"programs": 0}
    assert command.main(["--from", str(path)]) == command.DONE
    assert "zero3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hosts", "8"], "--hosts ([8])"),
        (["--hosts", "4", "2"], "--hosts ([4, 2])"),
        (["--hosts", "1", "3"], "powers of two"),
        (["--hosts", "1", "32"], "from 1 to 16"),
        (["--programs", "fsdp"], "--programs (fsdp)"),
        (["--mbit", "0"], "--mbit (0)"),
        (["--delay-ms", "-1"], "--delay-ms (-1)"),
        (["--steps", "1"], "--steps (1)"),
        (["--from", "absent.json"], "--from (absent.json)"),
    ],
)
def test_bad_input_names_the_option_and_the_remedy(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == command.BAD_INPUT
    assert says in capsys.readouterr().err

"""Sentences about the machine around a run: none calls it quiet that was not, or slow for a check of milliseconds."""

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen, ProgramLoad, program_names
from shardtune.service.pages.views.conditions import surroundings, troubles


@pytest.mark.parametrize(
    ("cores", "line"),
    [
        (0.02, ("good", "no other process kept the CPU busy")),
        (0.44, ("quiet", "other programs kept 0.4 CPU cores busy: clang on 0.4 cores")),
        (1.5, ("warn", "other programs kept 1.5 CPU cores busy: clang on 1.5 cores")),
    ],
)
def test_programs_below_the_warning_are_stated_too(cores: float, line: tuple[str, str]) -> None:
    """0.44 of 2 cores disturbed a run, and its page said that no other process kept the CPU busy."""
    programs = (ProgramLoad(name="clang", cores=round(cores, 1)),)
    assert surroundings(Conditions(foreign_cpu_cores=cores, foreign_programs=programs)) == (line,)


@pytest.mark.parametrize(
    ("cores", "rest"),
    [(1.0, ""), (1.04, ""), (1.6, ", ended or hidden programs on 0.6 cores"), (0.7, ""), (None, "")],
)
def test_cores_of_programs_without_a_name_are_stated(cores: float | None, rest: str) -> None:
    """Compilers that end within seconds took 0.6 cores more than the named programs, and nothing said so."""
    programs = (ProgramLoad(name="python", cores=0.42), ProgramLoad(name="clang", cores=0.58))
    assert program_names(programs, cores) == f"python on 0.4 cores, clang on 0.6 cores{rest}"
    assert program_names((), cores) == ""


def test_a_slow_rank_in_the_check_is_a_warning_on_gpus_only() -> None:
    """A rank of an undisturbed run on CPU took 3.97 times as long in the check, which is over in milliseconds."""
    pace = (0.015857, 0.003990)
    ((tone, text),) = surroundings(Conditions(rank_pace_s=pace))
    assert tone == "quiet" and "3.97×" in text and "CPU ranks share cores" in text
    device = DeviceSeen(uuid="GPU-0", memory_before_gib=0, throttled_fraction=0, power_capped_fraction=0)
    on_gpus = Conditions(rank_pace_s=pace, devices=(device,))
    assert any("3.97×" in text for _, text in troubles(on_gpus))

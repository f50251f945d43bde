"""The report of `benchmarks.short_steps`: errors by the product's own extension, beside the noise."""

import pytest

from benchmarks.short_steps import report
from benchmarks.short_steps.configurations import CONFIGURATIONS, task_of


def test_an_exact_extension_has_no_error_and_noise_is_that_of_whole_steps() -> None:
    times = [[0.1 + 2 * 0.5, 0.1 + 6 * 0.5, whole] for whole in (12.1, 12.1 * 1.01) * 4]
    row = {
        "name": "ddp",
        "accumulations": [2, 6],
        "whole": 24,
        "times_s": times,
        "short_peak_gib": 1,
        "whole_peak_gib": 1,
    }
    figures = report.figures([row])
    (scored,) = figures["rows"]
    assert scored["extension_error"] == pytest.approx(12.1 / (12.1 * 1.005) - 1, rel=0.01)
    assert scored["whole_step_noise"] == pytest.approx(1 / 1.01 - 1, rel=0.01) and figures["peak_error"]["largest"] == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_planner_gives_each_configuration_short_steps(name: str) -> None:
    short = task_of(CONFIGURATIONS[name], 24).plan.short_steps
    assert short is not None and short.accumulations is not None

"""Real traces of GPUs: compute, idle and overlap are what Holistic Trace Analysis 0.5.0 finds (tests/data has source and licence)."""

import gzip
from pathlib import Path

import pytest

from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis

DATA = Path(__file__).parents[2] / "data" / "holistic_trace_analysis"
PUBLISHED = {
    "sampled_rank-0": {"idle": 675_191, "compute": 210_320, "other": 337_336, "whole": 1_222_847, "overlap": 14.95},
    "sampled_rank-1": {"idle": 651_136, "compute": 271_973, "other": 308_077, "whole": 1_231_186, "overlap": 19.93},
}
"""Microseconds from the first kernel of the steps to the last, and overlap in per cent."""
OURS = {
    "compute": ("compute", "optimizer"),
    "idle": ("host", "idle", "data"),
    "other": ("transferring", "waiting", "copies"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shares_agree_within_a_twentieth_of_a_point(name):
    with gzip.open(DATA / f"{name}.json.gz") as file:
        actual_diagnosis = diagnosis([kineto.read(file, name)])
    stated, whole_s = PUBLISHED[name], sum(step.parts.step_s for step in actual_diagnosis.steps)
    assert 1e6 * whole_s == pytest.approx(stated["whole"], abs=1)
    for part, names in OURS.items():
        ours_s = sum(getattr(step.parts, f"{own}_s") for step in actual_diagnosis.steps for own in names)
        assert 100 * ours_s / whole_s == pytest.approx(100 * stated[part] / stated["whole"], abs=0.05), part
    assert 100 * actual_diagnosis.overlap == pytest.approx(stated["overlap"], abs=0.05)

"""Lines about a trial: its origin, the reason to try it in the first line, and what explains its memory."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.api_schemas.trials.trial import Trial, TrialOrigin, TrialReason, TrialState
from shardtune.service.wording.progress.trial_lines import trial_line
from tests.support.values.synthetic_studies import study_of

ZERO = TrialConfig(strategy=ZeroConfig(stage=2, overlap_comm=False))
BUFFER = ", of which 953.7 MiB are DeepSpeed's gradient buffer"
REASON = TrialReason(
    expected_gain=0.061, probability_faster=0.5, probability_infeasible=0.0, tokens_per_s_per_gpu=9.0,
    low_tokens_per_s_per_gpu=8.0, high_tokens_per_s_per_gpu=10.0, tests="zero instead of ddp", compared_trial=2,
)  # fmt: skip


def running(precision: str = "bf16-mixed") -> Study:
    study = study_of().model_copy(update={"result": None, "best_so_far": None})
    workload = study.spec.workload.with_precision(PRECISIONS[precision])
    return study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})


def line_of(trial: Trial, study: Study | None = None, *, is_first: bool = False) -> str:
    return trial_line(study or running(), trial, [trial], is_first=is_first)


def trial_of(config: TrialConfig, state: TrialState, **changes: Any) -> Trial:
    values = {"number": 0, "origin": TrialOrigin.SAMPLER, "description": config.describe(), **changes}
    return Trial(config=config, state=state, **values)


@pytest.mark.parametrize(
    ("origin", "note"),
    [(TrialOrigin.DEFAULT, " (a documented default)"), (TrialOrigin.BASELINE, " (yours)"), (TrialOrigin.SAMPLER, "")],
)
def test_a_line_names_the_origin_of_a_configuration_that_the_search_did_not_choose(origin: str, note: str) -> None:
    """That trials 0 and 1 are documented defaults was said only in the answer."""
    trial = trial_of(TrialConfig(strategy=DdpConfig()), TrialState.RUNNING, origin=origin)
    assert line_of(trial).endswith(f": DDP, micro batch 1{note}: running")


def test_only_the_first_line_says_why_a_trial_was_chosen() -> None:
    """The last line had 250 characters."""
    trial = trial_of(ZERO, TrialState.RUNNING, reason=REASON)
    why = " (like trial 2, but ZeRO instead of DDP; expected gain 6.1%)"
    assert line_of(trial, is_first=True).endswith(f": running{why}") and why not in line_of(trial)
    waiting = trial.model_copy(update={"state": TrialState.WAITING})
    assert line_of(waiting, is_first=True).endswith(f": waiting for a worker{why}")


@pytest.mark.parametrize(
    ("changes", "peak_gib", "precision", "is_explained"),
    [
        ({}, 0.99, "bf16-mixed", True),
        ({"reduce_bucket_size": 10**6}, 0.09, "bf16-mixed", False),
        ({"contiguous_gradients": False}, 0.99, "bf16-mixed", False),
        ({}, 12.0, "bf16-mixed", False),
        ({}, 0.09, "bf16-mixed", False),
        ({"stage": 3}, 0.99, "bf16-mixed", False),
        # DeepSpeed's BF16_Optimizer has no such buffer.
        ({"stage": 1}, 2.1, "bf16-mixed", False),
        ({"stage": 1}, 2.1, "fp32", True),
    ],
)
def test_a_peak_that_is_mostly_a_buffer_of_deepspeed_is_explained(
    changes: dict[str, Any], peak_gib: float, precision: str, is_explained: bool
) -> None:
    """0.99 GiB of ZeRO-2 beside 87 MiB of DDP looked wrong."""
    config = TrialConfig(strategy=ZeroConfig(**({"stage": 2, "overlap_comm": False} | changes)))
    trial = trial_of(config, TrialState.COMPLETE, tokens_per_s_per_gpu=1100.0, peak_allocated_gib=peak_gib)
    line = line_of(trial, running(precision))
    assert ("DeepSpeed's gradient buffer" in line) is is_explained
    assert BUFFER in line or precision == "fp32" or not is_explained

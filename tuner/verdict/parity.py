"""Parity: whether trials train the same model, checked by comparing their losses and norms of the first steps with the
study's reference trajectory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.optimizers import AdamW, AdamW8bit, AdamWBf16, OptimizerSchema
from shardtune.api_schemas.training.workload import Precision
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation

_ADAMW = AdamW()


@dataclass(frozen=True)
class Tolerance:
    """Tolerance of the parity check: largest relative differences allowed between two configurations' first steps if
    they train the same."""

    loss: float
    grad_norm: float
    parameter_square_sum: float
    parameter_sum: float
    """Allowed difference of the sums of parameters, relative to the root of their square sum, because the plain sum may
    cancel to almost zero."""
    first_step: "Tolerance | None" = None
    """Tighter bounds that replace those of later steps in the first step, as no rounding error has spread yet."""
    other_micro_batch: "Tolerance | None" = None
    """Bounds for two trials with different micro batches, where the micro batch size changes what is trained."""

    def at_step(self, step: int) -> "Tolerance":
        """Bounds that apply at a step, counted from 0."""
        return self.first_step if step == 0 and self.first_step is not None else self

    def between(self, first: TrialConfig, other: TrialConfig) -> "Tolerance":
        """Bounds on the differences of losses, gradient norms and weights between the recorded first steps of two
        configurations."""
        differs = first.micro_batch != other.micro_batch and self.other_micro_batch is not None
        return self.other_micro_batch if differs and self.other_micro_batch is not None else self


# Largest differences seen between 2-rank runs of all three backends over 4 steps (llama-tiny, torch 2.13 CPU):
# fp32 1e-7, 2e-5, 6e-8, 1e-6; bf16 3e-5, 4e-4, 5e-7, 6e-4. GPU kernels and larger models round more.
FP32 = Tolerance(loss=1e-5, grad_norm=1e-4, parameter_square_sum=1e-6, parameter_sum=1e-4)
# The same runs with Muon, whose iterations round to bf16 (6 steps, lr 1.25e-3): 9e-6, 1.8e-4, 7e-7, 3e-5 from step 1 on.
FP32_ROUNDED_UPDATES = Tolerance(loss=1e-4, grad_norm=2e-3, parameter_square_sum=1e-5, parameter_sum=1e-3)
# 8-bit AdamW, whose scales are those of 256 elements of a tensor or of ZeRO's partition: 8e-6, 1.9e-4, 4e-6, 4e-5; of LoRA's
# few small weights 2.2e-5, and a sum near zero 5e-3.
FP32_EIGHT_BIT = Tolerance(loss=1e-4, grad_norm=2e-3, parameter_square_sum=1e-4, parameter_sum=3e-2)
BF16 = Tolerance(loss=2e-3, grad_norm=3e-2, parameter_square_sum=1e-4, parameter_sum=3e-2)
# Weights that are rounded at each step. Over 6 steps of the same model: 4e-5, 1.3e-2 (torch rounds norms to bfloat16), 8e-6;
# of LoRA's few small weights 1.8e-4.
BF16_STATES = Tolerance(loss=2e-3, grad_norm=3e-2, parameter_square_sum=6e-4, parameter_sum=3e-2)
# Weights that are rounded by chance, with other random numbers in each backend. Over 6 steps of the same model, whose few weights
# of norms make most of the square sum: 2e-4, 7e-3, 1.2e-3, 1e-3. Larger models differ by less.
BF16_BY_CHANCE = replace(BF16_STATES, parameter_square_sum=3e-3)

# float8: a value at the edge between two of its numbers falls to either side, with a few per cent of its size. Over 6 steps of
# the same model: 6e-5, 2e-3, 1e-5, 3e-3. Where fp32 surrounds it, the first step is as close as fp32 itself: 1e-7, 1e-6.
FLOAT8 = BF16
FLOAT8_FIRST_STEP = replace(FLOAT8, loss=FP32.loss, grad_norm=FP32.grad_norm)
# One scale for a tensor is that of a micro batch. Over micro batches of 1, 2 and 4: 3e-4, 8e-3, 8e-5, 8e-2; a wider vocabulary 2e-3.
FLOAT8_OTHER_MICRO_BATCH = Tolerance(loss=6e-3, grad_norm=6e-2, parameter_square_sum=6e-4, parameter_sum=3e-1)


@dataclass(frozen=True)
class ParityGroups:
    """Trials of a study, grouped by whether they follow the study's reference trajectory (the losses and norms of the
    first steps of one trial)."""

    reference: int | None
    """Number of the trial whose first losses and norms all others must reproduce; None until two trials agree."""
    confirmed_by: int | None
    infeasible: dict[int, str] = field(default_factory=dict)
    """Reasons why trials were rejected, by the trial's number: the first figure in which its losses or norms differ
    from the reference trial's."""


def tolerance(
    precision: Precision, optimizer: OptimizerSchema = _ADAMW, float8: Float8Recipe | None = None
) -> Tolerance:
    """Largest allowed differences between two trials' losses, gradient norms and weights at a precision; they are
    smaller if no value is rounded below fp32. `float8`: scaling with which linear layers multiply in float8, or
    None."""
    exact = precision.is_float32_throughout
    if float8 is not None:
        own = _below_fp32(precision, optimizer)
        return replace(
            own,
            first_step=FLOAT8_FIRST_STEP if exact else None,
            other_micro_batch=FLOAT8_OTHER_MICRO_BATCH if float8 == "tensorwise" else None,
        )
    if not exact:
        return _below_fp32(precision, optimizer)
    if isinstance(optimizer, AdamW8bit):
        return FP32_EIGHT_BIT
    return FP32_ROUNDED_UPDATES if optimizer.rounds_updates else FP32


def _below_fp32(precision: Precision, optimizer: OptimizerSchema) -> Tolerance:
    """Tolerance for a training that rounds values below fp32; trainings in float8 have the tolerance of bfloat16."""
    if isinstance(optimizer, AdamWBf16):
        return BF16_BY_CHANCE
    return BF16_STATES if precision.has_low_states else BF16


def group_by_parity(
    history: Sequence[Observation],
    precision: Precision,
    single_backend: bool,
    optimizer: OptimizerSchema = _ADAMW,
    float8: Float8Recipe | None = None,
) -> ParityGroups:
    """Find the study's reference trajectory (losses and norms of the first steps), and the trials that differ from it.

    The reference is the first feasible trial with which an independent trial agrees: one of another backend, or with
    other groups of ranks. `single_backend`: whether only one backend can run. Then another configuration of this
    backend is enough to agree, and a single trial is its own reference. At each call all trials are compared anew,
    including those that an earlier comparison rejected.
    """
    bounds = tolerance(precision, optimizer, float8)
    witnesses = [obs for obs in history if _has_trajectory(obs)]
    candidates = [obs for obs in witnesses if _could_win(obs)]
    pair = _first_agreeing_pair(witnesses, bounds, single_backend)
    if pair is None:
        if single_backend and len(candidates) == 1:
            return ParityGroups(reference=candidates[0].number, confirmed_by=None)
        return ParityGroups(reference=None, confirmed_by=None)
    reference, witness = pair
    reasons = {}
    for obs in candidates:
        reason = difference(reference, obs, bounds)
        if reason is not None:
            reasons[obs.number] = reason
    return ParityGroups(reference=reference.number, confirmed_by=witness.number, infeasible=reasons)


def difference(reference: Observation, obs: Observation, bounds: Tolerance) -> str | None:
    """Description of the first step and figure (such as loss or gradient norm) in which two trials differ by more than
    the tolerance; None where the trials agree."""
    assert reference.measurement is not None and obs.measurement is not None
    expected_batch, actual_batch = (_recorded_batch(item) for item in (reference, obs))
    if expected_batch != actual_batch:
        return (
            f"its first steps trained on {actual_batch} and those of reference trial {reference.number} on "
            f"{expected_batch}, so that their losses cannot be compared"
        )
    bounds = bounds.between(reference.config, obs.config)
    for expected_step, actual_step in zip(reference.measurement.trajectory, obs.measurement.trajectory, strict=False):
        at_step = bounds.at_step(expected_step.step)
        reason = step_difference(expected_step, actual_step, at_step, f"reference trial {reference.number}")
        if reason is not None:
            return reason
    return None


def _recorded_batch(obs: Observation) -> str:
    """Batch that a trial's recorded first steps train on, in words for messages: only losses of the same batch can be
    compared."""
    short = obs.measurement.short_steps if obs.measurement is not None else None
    return "the whole global batch" if short is None else f"{short.parity_samples} samples"


def largest_differences(history: Sequence[Observation], groups: ParityGroups) -> dict[str, float]:
    """Largest relative difference of each compared figure (such as the loss) between the reference trial and the trials
    that agree with it; empty where there is no reference or no such trial."""
    by_number = {obs.number: obs for obs in history if _has_trajectory(obs) and obs.number not in groups.infeasible}
    reference = by_number.pop(groups.reference, None) if groups.reference is not None else None
    largest: dict[str, float] = {}
    for obs in by_number.values() if reference is not None else ():
        assert reference is not None and reference.measurement is not None and obs.measurement is not None
        for expected, actual in zip(reference.measurement.trajectory, obs.measurement.trajectory, strict=False):
            # The bounds do not matter here: only the differences are read.
            for label, _, _, apart, _ in _compared_figures(expected, actual, BF16):
                largest[label] = max(largest.get(label, 0.0), apart)
    return largest


def step_difference(
    expected_step: StepRecord, actual_step: StepRecord, bounds: Tolerance, other_name: str
) -> str | None:
    """Description of the first figure (such as loss or gradient norm) in which a training step differs from the same
    step of the trial `whose`; None where the two agree."""
    for label, expected, actual, apart, bound in _compared_figures(expected_step, actual_step, bounds):
        if not apart <= bound:
            return (
                f"{label} of step {expected_step.step} is {actual:.7g}, but {expected:.7g} in {other_name} "
                f"(relative difference {apart:.1e}, allowed {bound:.0e})"
            )
    return None


def _compared_figures(
    expected_step: StepRecord, actual_step: StepRecord, bounds: Tolerance
) -> list[tuple[str, float, float, float, float]]:
    rows = []
    # What a script did not report cannot differ.
    for label, name in (
        ("loss", "loss"),
        ("gradient norm", "grad_norm"),
        ("parameter square sum", "parameter_square_sum"),
    ):
        expected, actual = getattr(expected_step, name), getattr(actual_step, name)
        if expected is not None and actual is not None:
            rows.append((label, expected, actual, relative_difference(expected, actual), getattr(bounds, name)))
    sums = (
        expected_step.parameter_sum,
        actual_step.parameter_sum,
        expected_step.parameter_square_sum,
        actual_step.parameter_square_sum,
    )
    return [*rows, *_sum_figures(*sums, bounds)]


def _sum_figures(
    expected: float | None,
    actual: float | None,
    expected_squares: float | None,
    actual_squares: float | None,
    bounds: Tolerance,
) -> list[tuple[str, float, float, float, float]]:
    if expected is None or actual is None or expected_squares is None or actual_squares is None:
        return []
    scale = math.sqrt(max(expected_squares, actual_squares))
    apart = abs(expected - actual)
    drift = apart / scale if scale else apart
    return [("parameter sum", expected, actual, drift, bounds.parameter_sum)]


def relative_difference(first: float, second: float) -> float:
    """Absolute difference of two numbers, divided by the larger magnitude of the two."""
    scale = max(abs(first), abs(second))
    return abs(first - second) / scale if scale else 0.0


def _has_trajectory(obs: Observation) -> bool:
    return obs.measurement is not None and bool(obs.measurement.trajectory)


def _could_win(obs: Observation) -> bool:
    """Whether a trial is complete, or was rejected for nothing but an earlier comparison of its losses and norms with
    the reference trial's."""
    if obs.state is TrialState.COMPLETE:
        return True
    rejected = obs.failure is not None and obs.failure.kind is FailureKind.NUMERICS
    return obs.state is TrialState.INFEASIBLE and rejected


def _fault_domain(config: TrialConfig) -> tuple[str, int, int, int, int]:
    """Parts of a trial's configuration in which a fault may lie: two trials that differ in these parts cannot agree
    because of a shared fault."""
    strategy = config.strategy
    split = strategy.model_parallel, strategy.stages, strategy.expert_ranks
    return config.backend, config.context_parallel, *split


def _first_agreeing_pair(
    witnesses: Sequence[Observation], bounds: Tolerance, single_backend: bool
) -> tuple[Observation, Observation] | None:
    """First two trials whose losses and norms agree in their first steps, in the order of trials (later pairs never
    replace an earlier pair); None where no two agree."""
    for later in range(1, len(witnesses)):
        # A fault shared by both programs would give the same wrong losses twice, so only independent trials confirm.
        for earlier in range(later):
            pair = witnesses[earlier], witnesses[later]
            independent = single_backend or _fault_domain(pair[0].config) != _fault_domain(pair[1].config)
            if not independent or difference(*pair, bounds) is not None:
                continue
            for reference, witness in (pair, pair[::-1]):
                if _could_win(reference):
                    return reference, witness
    return None

"""Reasons for and against believing the result of a study, for the pages and the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeCheck
from shardtune.service.wording import study_words
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.result_runs import ResultRuns
from shardtune.tuner.prediction import traced_shape
from shardtune.tuner.prediction.learning import launch_fraction
from shardtune.tuner.search.stopping import MIN_GUIDED, MIN_TRIALS
from shardtune.tuner.verdict import disturbance

_NOISY = 0.1
"""Relative spread (standard deviation over mean) of the paired runs' speed ratios above which readers are warned."""
_WIDE = 1.5
"""Upper over lower end of a confirmed speed-up's interval above which readers are warned."""
_LAUNCH_BOUND = 0.5
"""Predicted fraction of forward and backward in which the GPUs wait for kernel launches, above which readers are
warned."""
_RESUME_TONES = {"passed": "good", "failed": "bad", "not_checked": "warn"}


@dataclass(frozen=True)
class Trust:
    """One reason for or against believing the result of a study."""

    tone: str
    text: str


def trust(study: Study, stored: ResultRuns) -> tuple[Trust, ...]:
    """Return the reasons for and against believing a study's result that its own measurements give.

    Each sentence is based on the study's result and on `stored` runs; reasons that need runs are left out without
    them.
    """
    result = study.result
    if result is None:
        return ()
    reasons = [
        _paired_runs(result),
        *_wide_interval(result),
        *_undecided(result),
        *_too_busy(result),
        *_uneven_pairs(result),
        *_other_candidates(result, stored),
        *_disturbed_runs(result, stored),
        *_disturbed_searches(result),
        *_throttled_runs(result, stored),
        *_launch_bound(study, result),
        *_short_search(study, stored.complete),
        *_same_training(study, result, stored),
    ]
    if result.resume_check is not None:
        reasons += _resume_check(result.resume_check, study.spec.checkpoint_every_s)
    reasons += [Trust("quiet", study_words.default_comparison(row)) for row in result.against_defaults]
    return (*reasons, *(Trust("quiet", note) for note in result.notes))


def _paired_runs(result: StudyResult) -> Trust:
    comparison = result.final_comparison
    if comparison is None or not comparison.pairs:
        runs = "one run" if result.best.runs == 1 else f"{result.best.runs} runs"
        missing = "without paired runs" if comparison is None else "and no pair of candidate and baseline was completed"
        if comparison is not None and comparison.uneven_pairs:
            missing = "and no pair of candidate and baseline counts, because their runs had unequal load"
        return Trust("warn", f"measured in {runs}, {missing}")
    ratios = comparison.ratios
    paired = counted(comparison.pairs, "paired run")
    text = f"{paired} after the search (candidate and baseline directly after each other, each in new processes)"
    if len(ratios) > 1:
        text += f": from {min(ratios):.2f}× to {max(ratios):.2f}×"
    # Under two ratios there is no spread; `stdev` of one value raises.
    is_noisy = len(ratios) > 1 and stdev(ratios) / fmean(ratios) > _NOISY
    text += "; the spread is large" if is_noisy else ""
    is_good = not is_noisy and not comparison.disturbed_pairs and result.speedup is not None
    return Trust("good" if is_good else "warn", text)


def _wide_interval(result: StudyResult) -> list[Trust]:
    """Warn where a speed-up is confirmed but its interval is wide, so that its size is uncertain."""
    if result.verdict is not Verdict.CONFIRMED or result.speedup is None:
        return []
    low, high = result.speedup.ci95
    if low <= 0 or high / low <= _WIDE:
        return []
    text = f"how much faster it is stays uncertain: {low:.2f}× to {high:.2f}× (95 % interval of {result.speedup.pairs} pairs)"
    return [Trust("warn", text)]


def _resume_check(check: ResumeCheck, every_s: float) -> list[Trust]:
    """Return the result of the study's resume check and the cost of its checkpoints, as reasons for or
    against believing the result.
    """
    text = study_words.checkpoint_cost(check, every_s)
    cost = [Trust("quiet", text)] if text else []
    slow = [Trust("warn", f"checkpoints: {finding}") for finding in check.checkpoint_findings]
    return [
        Trust(_RESUME_TONES[check.outcome], f"checkpoint resume: {study_words.resume_check_text(check)}"),
        *(slow or cost),
    ]


def _undecided(result: StudyResult) -> list[Trust]:
    return [Trust("warn", study_words.undecided_text(result.undecided))] if result.undecided is not None else []


def _too_busy(result: StudyResult) -> list[Trust]:
    return [Trust("bad", result.too_busy.describe())] if result.too_busy is not None else []


def _uneven_pairs(result: StudyResult) -> list[Trust]:
    """Count the pairs of runs that were left out because other programs left the two runs unequal numbers of cores,
    and the runs that count although disturbed."""
    comparison = result.final_comparison
    if comparison is None:
        return []
    reasons = []
    if comparison.uneven_pairs:
        pairs = "1 more pair was" if comparison.uneven_pairs == 1 else f"{comparison.uneven_pairs} more pairs were"
        reasons.append(
            Trust("quiet", f"{pairs} left out, because other programs left the two runs unequal numbers of cores")
        )
    # The verdict `too_busy` says it itself, of all pairs.
    if comparison.disturbed_runs and result.too_busy is None:
        text = f"other programs disturbed {comparison.disturbed_runs} of the {2 * comparison.pairs} runs in these pairs"
        reasons.append(
            Trust(
                "warn",
                f"{text}. Both runs of a pair had about as many cores left, so each pair is fair; the speed-up on a quiet "
                "machine may differ",
            )
        )
    return reasons


def _other_candidates(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Name the trials that had validation runs but were not compared in pairs."""
    # An undecided comparison recommends the baseline: the candidate, not the best, is what was paired.
    paired = result.candidate or result.best
    others = stored.repeated_besides(paired.trial_number, result.baseline.trial_number)
    if not others or result.final_comparison is None:
        return []
    named = f"trial{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
    chosen = f"; trial {paired.trial_number} went into the pairs" if result.final_comparison.pairs else ""
    return [Trust("quiet", f"also run again: {named}{chosen}")]


def _disturbed_runs(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Warn about validation runs of the best configuration that count although other processes disturbed them."""
    runs = stored.runs_of(result.best.trial_number)
    reasons = [run.disturbed for run in runs if run.disturbed is not None]
    if not reasons:
        return []
    which = f"{len(reasons)} of the {len(runs)} validation runs of trial {result.best.trial_number}"
    # Runs of a machine that was too busy to answer decide nothing.
    counted = "were disturbed" if result.too_busy is not None else "count although disturbed"
    return [Trust("warn", f"{which} {counted} (the last: {reasons[-1]})")]


def _throttled_runs(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Warn about runs of the best configuration in which a GPU ran at lowered clocks."""
    runs = stored.runs_of(result.best.trial_number) or tuple(filter(None, (stored.best_search_run,)))
    reasons = [reason for run in runs if (reason := disturbance.throttling(run)) is not None]
    if not reasons:
        return []
    which = f"{len(reasons)} of the {len(runs)} runs" if len(runs) > 1 else "the run"
    text = f"{which} of trial {result.best.trial_number} had lowered clocks (the last: {reasons[-1]})"
    return [Trust("warn", f"{text}; a cooler machine may be faster")]


def _launch_bound(study: Study, result: StudyResult) -> list[Trust]:
    """Warn where the GPUs mostly wait for kernel launches, so that configurations are ranked by host overheads."""
    if study.cluster.device != "cuda" or study.model_summary is None:
        return []
    shape = traced_shape.of_study(study.spec.model, study.model_summary, study.spec.workload.adapter)
    fraction = launch_fraction(shape, study.spec.workload, study.cluster, result.best.config)
    if fraction is None or fraction <= _LAUNCH_BOUND:
        return []
    return [
        Trust(
            "warn",
            f"launch-bound: the GPUs are predicted to wait for the host's kernel launches in {fraction:.0%} of forward and "
            "backward, so this ranking says little of real models; use longer sequences, larger micro batches or a larger model",
        )
    ]


def _disturbed_searches(result: StudyResult) -> list[Trust]:
    text = study_words.disturbed_searches(result)
    return [Trust("warn", f"{text}: what ran there may be faster than measured")] if text else []


def _short_search(study: Study, complete: Sequence[TrialConfig]) -> list[Trust]:
    """Warn if the search of a study measured too few configurations."""
    enough = MIN_GUIDED if study.spec.sampler == "guided" else MIN_TRIALS
    if study.system_study is not None or not complete or len(complete) >= enough:
        return []
    sizes = {config.micro_batch for config in complete}
    same = f", all of them with micro batch {next(iter(sizes))}" if len(sizes) == 1 else ""
    return [
        Trust(
            "warn",
            f"a short search: {len(complete)} configurations were measured in full{same}; a larger budget may find a "
            "faster one",
        )
    ]


def _same_training(study: Study, result: StudyResult, stored: ResultRuns) -> list[Trust]:
    # Every complete trial agrees with the study's reference; one that does not becomes infeasible.
    if not stored.complete:
        return []
    own = backend_name(result.best.config.backend)
    named = " and ".join(sorted({backend_name(config.backend) for config in stored.complete} - {own}))
    if not named and len(stored.complete) == 1:
        return [Trust("warn", "only one configuration was measured, so no other confirms its losses")]
    if not named and len(study.spec.space.backends) > 1:
        return [Trust("warn", "no trial of another backend was measured in full, so none confirms its losses")]
    named = named or f"another configuration of {own}, the only backend here"
    return [Trust("good", f"{_compared_values(study, _measured_runs(result, stored))} agree with those of {named}")]


def _measured_runs(result: StudyResult, stored: ResultRuns) -> tuple[Measurement, ...]:
    search = (stored.best_search_run,) if stored.best_search_run is not None else ()
    return (*search, *stored.runs_of(result.best.trial_number))


def _compared_values(study: Study, fresh: Sequence[Measurement]) -> str:
    """List the values of the first training steps (losses, gradient norms, weights) by which configurations were
    compared; a user's script must report losses and may omit the others.
    """
    steps = [step for run in fresh for step in run.trajectory]
    if not steps and study.spec.model.script is not None:
        return "losses, and what else the script reports,"
    reported, missing = ["losses"], list[str]()
    for name, words in (("grad_norm", "gradient norms"), ("parameter_sum", "weights")):
        (missing if any(getattr(step, name) is None for step in steps) else reported).append(words)
    listed = " and ".join(filter(None, [", ".join(reported[:-1]), reported[-1]]))
    return f"{listed} (the script reports no {' and no '.join(missing)})" if missing else listed

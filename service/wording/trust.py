"""Reasons for and against believing the result of a study, for the pages and the command line."""

from collections.abc import Sequence
from statistics import fmean, stdev

from shardtune.api_schemas.formatting import counted, listed
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import FinalComparison, StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.service.wording import study_words
from shardtune.service.wording.answers import disturbances, sustained_speed
from shardtune.service.wording.answers.kept_answer import kept_answer
from shardtune.service.wording.answers.trust_line import INTERVAL, Trust, part_of
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.result_runs import ResultRuns
from shardtune.tuner.prediction import traced_shape
from shardtune.tuner.prediction.learning import launch_fraction
from shardtune.tuner.search.stopping import MIN_GUIDED, MIN_TRIALS

_NOISY = 0.1
"""Maximum relative spread of the paired runs' speed ratios (standard deviation divided by mean) that is shown without
a warning."""
_WIDE = 1.5
"""Maximum ratio of the upper to the lower end of a confirmed speed-up's interval that is shown without a warning."""
_LAUNCH_BOUND = 0.5
"""Maximum predicted fraction of the forward and backward pass in which the GPUs wait for kernel launches that is shown
without a warning."""
_RESUME_TONES = {"passed": "good", "failed": "bad", "not_checked": "warn"}


def trust(study: Study, stored: ResultRuns) -> tuple[Trust, ...]:
    """Return the reasons, taken from a study's own measurements, for and against believing its result.

    The sentences are based on the study's result and on the `stored` runs. Without stored runs, reasons that need them
    are left out.
    """
    result = study.result
    if result is None:
        return ()
    reasons = [
        _paired_runs(result),
        *_wide_interval(result),
        *_undecided(result),
        *disturbances.too_busy(result),
        *kept_answer(result),
        *disturbances.uneven_pairs(result, stored),
        *_other_candidates(result, stored),
        *disturbances.disturbed_runs(result, stored),
        *disturbances.disturbed_searches(result),
        *disturbances.throttled_runs(result, stored),
        *_launch_bound(study, result),
        *_short_search(study, stored.complete),
        *_same_training(study, result, stored),
    ]
    if result.resume_check is not None:
        reasons += _resume_check(result.resume_check, study.spec.checkpoint_every_s)
    reasons += sustained_speed.reasons(result)
    reasons += [Trust("quiet", study_words.default_comparison(row)) for row in result.against_defaults]
    # Notes about the request, such as one about its number of trials, say nothing of the answer; the page shows them in
    # a place of their own, and `tune` prints them at its start.
    of_request = set(study.warnings)
    return (*reasons, *(Trust("quiet", note) for note in result.notes if note not in of_request))


def _paired_runs(result: StudyResult) -> Trust:
    comparison = result.final_comparison
    if comparison is None or not comparison.pairs:
        return _without_pairs(result, comparison)
    ratios = comparison.ratios
    paired = counted(comparison.pairs, "paired run")
    text = f"{paired} after the search (candidate and baseline directly after each other, each in new processes)"
    if len(ratios) > 1:
        text += f":{_range(ratios)}"
    # Under two ratios there is no spread; `stdev` of one value raises.
    is_noisy = len(ratios) > 1 and stdev(ratios) / fmean(ratios) > _NOISY
    text += "; the spread is large" if is_noisy else ""
    is_open = result.too_busy is not None or result.undecided is not None
    is_good = not is_noisy and not comparison.disturbed_pairs and result.speedup is not None
    # Pairs that settle nothing are no reason to believe an answer, however close their ratios lie together.
    if is_good and not is_open:
        agreement = f"the pairs agree,{_range(ratios)}" if len(ratios) > 1 else "the pairs agree"
        brief = f"compared in runs directly after each other, each in new processes; {agreement}"
        return Trust("good", text, brief)
    return Trust("warn", text, _doubt_about_pairs(result, comparison, is_noisy))


def _without_pairs(result: StudyResult, comparison: FinalComparison | None) -> Trust:
    runs = "one run" if result.best.runs == 1 else f"{result.best.runs} runs"
    if comparison is None:
        return Trust("warn", f"measured in {runs}, without paired runs", "measured without paired runs")
    missing = "no pair of candidate and baseline was completed"
    if comparison.uneven_pairs:
        missing = "no pair of candidate and baseline counts, because their runs had unequal load"
    return Trust("warn", f"measured in {runs}, and {missing}", missing)


def _doubt_about_pairs(result: StudyResult, comparison: FinalComparison, is_noisy: bool) -> str:
    """Return why the pairs of runs are only weak evidence; empty if another reason already says it."""
    if result.too_busy is not None or result.undecided is not None:
        return ""
    if is_noisy:
        return "" if _wide_interval(result) else f"the pairs differ widely:{_range(comparison.ratios)}"
    if result.speedup is None:
        return "too few pairs for an interval"
    if comparison.disturbed_counted_runs:
        return ""
    return f"other programs disturbed {part_of(comparison.disturbed_pairs, comparison.pairs)} the pairs"


def _range(ratios: Sequence[float]) -> str:
    return f" from {min(ratios):.2f}× to {max(ratios):.2f}×" if len(ratios) > 1 else ""


def _wide_interval(result: StudyResult) -> list[Trust]:
    """Warn if a speed-up is confirmed but its interval is wide, so that its size is uncertain."""
    if result.verdict is not Verdict.CONFIRMED or result.speedup is None:
        return []
    low, high = result.speedup.ci95
    if low <= 0 or high / low <= _WIDE:
        return []
    uncertain = "how much faster it is stays uncertain"
    # A confirmed study runs no more pairs, so there is nothing to advise.
    text = f"{uncertain}: {low:.2f}× to {high:.2f}× (95 % interval of {result.speedup.pairs} pairs)"
    return [Trust("warn", text, f"{uncertain}: the 95 % interval is wide", INTERVAL)]


def _resume_check(check: ResumeCheck, every_s: float) -> list[Trust]:
    """Return the result of the study's resume check and the cost of its checkpoints, as reasons for or
    against believing the result.
    """
    text = study_words.checkpoint_cost(check, every_s)
    cost = [Trust("quiet", text)] if text else []
    slow = [Trust("warn", f"checkpoints: {finding}") for finding in check.checkpoint_findings]
    brief = None
    if check.outcome == ResumeOutcome.PASSED:
        losses = f"losses within {check.loss_difference:.1e}" if check.loss_difference else "identical losses"
        brief = f"it resumes from its own checkpoint, with {losses}"
    resumed = f"checkpoint resume: {study_words.resume_check_text(check)}"
    return [Trust(_RESUME_TONES[check.outcome], resumed, brief), *(slow or cost)]


def _undecided(result: StudyResult) -> list[Trust]:
    verdict, comparison = result.undecided, result.final_comparison
    if verdict is None:
        return []
    reason = _open_reason(verdict, comparison.ratios if comparison is not None else ())
    return [Trust("warn", study_words.undecided_text(verdict), reason)]


def _open_reason(verdict: OpenVerdict, ratios: Sequence[float]) -> str:
    """Return why a study's verdict is open, in words without the numbers of pairs."""
    if not verdict.pairs:
        # The first reason says it.
        return ""
    if verdict.is_extension_off:
        return (
            "whole steps contradict the extended step times of the pairs; a study with budget.short_steps false times "
            "whole steps throughout"
        )
    if verdict.disturbed_pairs == verdict.pairs:
        return "other programs disturbed every pair; only a quieter machine can decide it"
    if verdict.more_pairs is None:
        why = (
            "on a quieter machine they would vary less"
            if verdict.disturbed_counted_runs
            else study_words.UNDISTURBED_SPREAD
        )
        return f"the pairs vary so much,{_range(ratios)}, that more of them would not decide it; {why}"
    return f"the pairs so far,{_range(ratios)}, do not tell the two apart"


def _other_candidates(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Name the trials that ran again after the search (validation runs) but were not compared with the baseline in
    pairs, and those candidates among them that may be as fast as the paired one."""
    # An undecided comparison recommends the baseline: the candidate, not the best, is what was paired.
    paired = result.candidate or result.best
    others = stored.repeated_besides(paired.trial_number, result.baseline.trial_number)
    if not others or result.final_comparison is None:
        return []
    # Without a user's baseline, documented defaults ran against each other: the fastest became the baseline.
    candidates = [number for number in others if number in result.final_comparison.candidates]
    defaults = [number for number in others if number not in candidates]
    named = listed([*_numbered(candidates, "candidate"), *_numbered(defaults, "documented default")])
    chosen = f"; trial {paired.trial_number} went into the pairs" if result.final_comparison.pairs else ""
    # Without a speed-up, it may only be the least slow of candidates that are all far behind the baseline.
    chosen += ", as the fastest candidate by then" if chosen and candidates and result.speedup is not None else ""
    reasons = [Trust("quiet", f"also run again: {named}{chosen}")]
    # The verdict compares one candidate with the baseline, and no two candidates.
    if alike := stored.overlapping(paired.trial_number, candidates):
        names = f"trial{'s' if len(alike) > 1 else ''} {', '.join(map(str, alike))}"
        why = "the speeds of their validation runs overlap"
        reasons.append(Trust("quiet", f"not distinguishable from trial {paired.trial_number}: {names} ({why})"))
    return reasons


def _numbered(numbers: Sequence[int], kind: str) -> list[str]:
    """Name trials of one kind by their numbers: `trials 1, 2 (candidates)`; empty without any."""
    if not numbers:
        return []
    if len(numbers) == 1:
        return [f"trial {numbers[0]} (a {kind})"]
    return [f"trials {', '.join(map(str, numbers))} ({kind}s)"]


def _launch_bound(study: Study, result: StudyResult) -> list[Trust]:
    """Warn if the GPUs mostly wait for kernel launches: the ranking of configurations then shows overheads of the
    host."""
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


def _short_search(study: Study, complete: Sequence[TrialConfig]) -> list[Trust]:
    """Warn if the search of a study measured too few configurations."""
    enough = MIN_GUIDED if study.spec.sampler == "guided" else MIN_TRIALS
    if study.system_study is not None or not complete or len(complete) >= enough:
        return []
    sizes = {config.micro_batch for config in complete}
    same = f", all of them with micro batch {next(iter(sizes))}" if len(sizes) == 1 else ""
    hope = "a larger budget may find a faster one"
    if len(complete) == 1:
        # That it is the only one is a reason of its own.
        text = f"a short search: 1 configuration was measured in full; {hope}"
        return [Trust("warn", text, f"a short search; {hope}")]
    measured = f"{len(complete)} configurations were measured in full{same}"
    brief = f"few configurations were measured in full{same}"
    return [Trust("warn", f"a short search: {measured}; {hope}", f"a short search: {brief}; {hope}")]


def _same_training(study: Study, result: StudyResult, stored: ResultRuns) -> list[Trust]:
    # Every complete trial agrees with the study's reference; one that does not becomes infeasible.
    if not stored.complete:
        return []
    own = backend_name(result.best.config.backend)
    named = listed(sorted({backend_name(config.backend) for config in stored.complete} - {own}))
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
    """List the values of the first training steps (losses, gradient norms, weights) in which the configurations were
    compared. A user's script must report losses and may omit the other values."""
    steps = [step for run in fresh for step in run.trajectory]
    if not steps and study.spec.model.script is not None:
        return "losses, and what else the script reports,"
    reported, missing = ["losses"], list[str]()
    for name, words in (("grad_norm", "gradient norms"), ("parameter_sum", "weights")):
        (missing if any(getattr(step, name) is None for step in steps) else reported).append(words)
    values = listed(reported)
    return f"{values} (the script reports no {' and no '.join(missing)})" if missing else values

"""Reasons for and against believing the result of a study, for the pages and the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study, StudyResult
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeCheck
from shardtune.service.wording import study_words
from shardtune.service.wording.backend_words import backend_name
from shardtune.tuner.search.stopping import MIN_GUIDED, MIN_TRIALS

_NOISY = 0.1
"""Relative spread (standard deviation over mean) of the paired runs' speed ratios above which readers are warned."""
_RESUME_TONES = {"passed": "good", "failed": "bad", "not_checked": "warn"}


@dataclass(frozen=True)
class Trust:
    """One reason for or against believing the result of a study."""

    tone: str
    text: str


def trust(study: Study, complete: Sequence[TrialConfig], validation_runs: Sequence[Measurement]) -> tuple[Trust, ...]:
    """Return the reasons for and against believing a study's result that follow from the study itself.

    `complete` contains the measured configurations, `fresh` the validation runs of the best.
    """
    result = study.result
    if result is None:
        return ()
    reasons = [
        _paired_runs(result),
        *_undecided(result),
        *_too_busy(result),
        *_uneven_pairs(result),
        *_other_candidates(result),
        *_disturbed_runs(result, validation_runs),
        *_short_search(study, complete),
    ]
    reasons.append(_same_training(study, result, complete, validation_runs))
    if result.resume_check is not None:
        reasons += _resume_check(result.resume_check, study.spec.checkpoint_every_s)
    reasons += [Trust("quiet", study_words.default_comparison(row)) for row in result.against_defaults]
    return (*reasons, *(Trust("quiet", note) for note in result.notes))


def _paired_runs(result: StudyResult) -> Trust:
    if result.speedup is None:
        runs = "one run" if result.best.runs == 1 else f"{result.best.runs} runs"
        return Trust("warn", f"measured in {runs}, without paired runs")
    ratios = result.speedup.ratios
    text = f"{len(ratios)} paired runs after the search (candidate and baseline in turn, each in new processes)"
    if len(ratios) > 1:
        text += f": from {min(ratios):.2f}× to {max(ratios):.2f}×"
    # Under two ratios there is no spread; `stdev` of one value raises.
    is_noisy = len(ratios) > 1 and stdev(ratios) / fmean(ratios) > _NOISY
    if is_noisy:
        text += "; the spread is large, so other processes may have used the machine"
    return Trust("warn" if is_noisy else "good", text)


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
    """Name the pairs that were left out, and those that count although other programs slowed both of their runs."""
    comparison = result.final_comparison
    if comparison is None:
        return []
    reasons = []
    if comparison.uneven_pairs:
        pairs = "1 more pair was" if comparison.uneven_pairs == 1 else f"{comparison.uneven_pairs} more pairs were"
        reasons.append(
            Trust("quiet", f"{pairs} left out, because other programs left the two runs unequal numbers of cores")
        )
    if comparison.disturbed_runs:
        text = (
            f"other programs slowed {comparison.disturbed_runs} of the {2 * comparison.pairs} paired runs, equally in"
        )
        reasons.append(Trust("warn", f"{text} both runs of a pair; the speed-up on a quiet machine may differ"))
    return reasons


def _other_candidates(result: StudyResult) -> list[Trust]:
    """Name the other finalists of the final comparison, which were not paired with the baseline."""
    # An undecided comparison recommends the baseline: the candidate, not the best, is what was paired.
    paired = result.candidate or result.best
    if result.final_comparison is None:
        return []
    others = [number for number in result.final_comparison.candidates if number != paired.trial_number]
    if not others:
        return []
    named = f"trial{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
    return [Trust("quiet", f"also run again: {named}; trial {paired.trial_number} was the fastest in these runs")]


def _disturbed_runs(result: StudyResult, fresh: Sequence[Measurement]) -> list[Trust]:
    """Warn about validation runs of the best configuration that count although other processes disturbed them."""
    reasons = [run.disturbed for run in fresh if run.disturbed is not None]
    if not reasons:
        return []
    which = f"{len(reasons)} of the {len(fresh)} validation runs of trial {result.best.trial_number}"
    return [Trust("warn", f"the machine stayed busy: {which} count although disturbed ({reasons[-1]})")]


def _short_search(study: Study, complete: Sequence[TrialConfig]) -> list[Trust]:
    """Warn if the search of a study measured too few configurations."""
    enough = MIN_GUIDED if study.spec.sampler == "guided" else MIN_TRIALS
    if study.system_study is not None or len(complete) >= enough:
        return []
    sizes = {config.micro_batch for config in complete}
    same = f", all of them with micro batch {next(iter(sizes))}" if len(sizes) == 1 else ""
    return [
        Trust(
            "warn",
            f"a short search: {len(complete)} configurations were measured{same}; a larger budget may find a faster one",
        )
    ]


def _same_training(
    study: Study, result: StudyResult, complete: Sequence[TrialConfig], fresh: Sequence[Measurement]
) -> Trust:
    if any("no other backend" in note for note in result.notes):
        return Trust("warn", "only one backend could run, so no other backend confirms its losses")
    own = backend_name(result.best.config.backend)
    named = " and ".join(sorted({backend_name(config.backend) for config in complete} - {own}))
    if not named and len(complete) == 1:
        return Trust("warn", "only one configuration was measured, so no other confirms its losses")
    if not named:
        # Where no trials are at hand, the space tells whether there can have been another backend.
        is_alone = bool(complete) or len(study.spec.space.backends) == 1
        named = f"another configuration of {own}, the only backend here" if is_alone else "another backend"
    return Trust("good", f"{_compared_values(study, fresh)} agree with those of {named}")


def _compared_values(study: Study, fresh: Sequence[Measurement]) -> str:
    """List the values of the first training steps by which configurations were compared; a user's script must report
    losses and may omit the other values.
    """
    steps = [step for run in fresh for step in run.trajectory]
    if not steps and study.spec.model.script is not None:
        return "losses, and what else the script reports,"
    reported, missing = ["losses"], list[str]()
    for name, words in (("grad_norm", "gradient norms"), ("parameter_sum", "weights")):
        (missing if any(getattr(step, name) is None for step in steps) else reported).append(words)
    listed = " and ".join(filter(None, [", ".join(reported[:-1]), reported[-1]]))
    return f"{listed} (the script reports no {' and no '.join(missing)})" if missing else listed

"""Reasons for and against believing the answer of a study, for the pages and the command line."""

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
"""Relative spread of the pairs' ratios beyond which a reader should know of it."""
_RESUME_TONES = {"passed": "good", "failed": "bad", "not_checked": "warn"}


@dataclass(frozen=True)
class Trust:
    """One reason for or against believing the answer."""

    tone: str
    text: str


def trust(study: Study, complete: Sequence[TrialConfig], fresh: Sequence[Measurement]) -> tuple[Trust, ...]:
    """All that follow from the study itself; `complete`: what was measured; `fresh`: the validation runs of the best."""
    result = study.result
    if result is None:
        return ()
    found = [_pairs(result), *_open(result), *_rivals(result), *_disturbed(result, fresh), *_thin(study, complete)]
    found.append(_numerics(study, result, complete, fresh))
    if result.resume_check is not None:
        found += _restarted(result.resume_check, study.spec.checkpoint_every_s)
    found += [Trust("quiet", study_words.against(row)) for row in result.against_defaults]
    return (*found, *(Trust("quiet", note) for note in result.notes))


def _pairs(result: StudyResult) -> Trust:
    if result.speedup is None:
        runs = "one run" if result.best.runs == 1 else f"{result.best.runs} runs"
        return Trust("warn", f"measured in {runs}, without a comparison in pairs")
    ratios = result.speedup.ratios
    text = f"{len(ratios)} paired runs (candidate and baseline in turn, each in new processes), which the search did not see"
    if len(ratios) > 1:
        text += f": from {min(ratios):.2f}× to {max(ratios):.2f}×"
    is_noisy = len(ratios) > 1 and stdev(ratios) / fmean(ratios) > _NOISY
    if is_noisy:
        text += "; they lie far apart, so other programs may have used the machine"
    return Trust("warn" if is_noisy else "good", text)


def _restarted(check: ResumeCheck, every_s: float) -> list[Trust]:
    """What the check came to, and what checkpoints cost."""
    costs = study_words.checkpoints(check, every_s)
    told = [Trust("quiet", costs)] if costs else []
    slow = [Trust("warn", f"checkpoints: {finding}") for finding in check.checkpoint_findings]
    return [Trust(_RESUME_TONES[check.outcome], study_words.restarted(check)), *(slow or told)]


def _open(result: StudyResult) -> list[Trust]:
    return [Trust("warn", study_words.undecided(result.undecided))] if result.undecided is not None else []


def _rivals(result: StudyResult) -> list[Trust]:
    """Who was run again, too, and was not paired: among them may be the fastest of the search."""
    paired = result.candidate or result.best
    if result.final_comparison is None:
        return []
    others = [number for number in result.final_comparison.candidates if number != paired.trial_number]
    if not others:
        return []
    named = f"trial{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
    return [Trust("quiet", f"run again, too: {named}; trial {paired.trial_number} was the fastest there")]


def _disturbed(result: StudyResult, fresh: Sequence[Measurement]) -> list[Trust]:
    """The best's validation runs that count although the machine did not get quiet."""
    reasons = [run.disturbed for run in fresh if run.disturbed is not None]
    if not reasons:
        return []
    which = f"{len(reasons)} of the {len(fresh)} validation runs of trial {result.best.trial_number}"
    return [Trust("warn", f"the machine did not get quiet: {which} count although disturbed ({reasons[-1]})")]


def _thin(study: Study, complete: Sequence[TrialConfig]) -> list[Trust]:
    """A warning where a search was too short to have seen much."""
    enough = MIN_GUIDED if study.spec.sampler == "guided" else MIN_TRIALS
    if study.system_study is not None or len(complete) >= enough:
        return []
    sizes = {config.micro_batch for config in complete}
    same = f", all of them with micro batch {next(iter(sizes))}" if len(sizes) == 1 else ""
    return [
        Trust(
            "warn", f"a short search: {len(complete)} configurations were measured{same}; a larger budget may find more"
        )
    ]


def _numerics(
    study: Study, result: StudyResult, complete: Sequence[TrialConfig], fresh: Sequence[Measurement]
) -> Trust:
    if any("no other backend" in note for note in result.notes):
        return Trust("warn", "only one backend could run, so no other confirms that it trains the same thing")
    own = backend_name(result.best.config.backend)
    named = " and ".join(sorted({backend_name(config.backend) for config in complete} - {own}))
    if not named and len(complete) == 1:
        return Trust("warn", "only one configuration was measured, so no other confirms that it trains the same thing")
    if not named:
        # Where no trials are at hand, the space tells whether there can have been another backend.
        is_alone = bool(complete) or len(study.spec.space.backends) == 1
        named = f"another configuration of {own}, the only backend here" if is_alone else "another backend"
    return Trust("good", f"it trains the same thing: {_compared(study, fresh)} agree with those of {named}")


def _compared(study: Study, fresh: Sequence[Measurement]) -> str:
    """What of the first steps was there to compare: a script of the user's own reports losses, and may leave out the rest."""
    steps = [step for run in fresh for step in run.trajectory]
    if not steps and study.spec.model.script is not None:
        return "losses, and what else the script reports,"
    found, missing = ["losses"], list[str]()
    for name, words in (("grad_norm", "gradient norms"), ("parameter_sum", "weights")):
        (missing if any(getattr(step, name) is None for step in steps) else found).append(words)
    known = " and ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
    return f"{known} (the script tells no {' and no '.join(missing)})" if missing else known

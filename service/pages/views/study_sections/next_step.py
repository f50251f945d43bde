"""Next step after a study has ended: one sentence, with the button or the command that takes it."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from urllib.parse import urlencode

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.recommendations.best import RecommendationState
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.training import model_presets
from shardtune.service.pages.views.freshness import StudyFreshness
from shardtune.service.pages.views.recommendation import Recommended
from shardtune.service.studies import extension
from shardtune.service.wording import own_baseline
from shardtune.service.wording.more_pairs import more_pairs
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.search import stopping

QUIET_WAIT_MINUTES = 30
"""Maximum total minutes for which the runs of a study that is repeated wait for a quiet machine, because the machine
was too busy before."""
_WAIT = (("wait_minutes", str(QUIET_WAIT_MINUTES)),)
_WAIT_WORDS = f" --wait-for-quiet-s {60 * QUIET_WAIT_MINUTES}"
"""Words of `shardtune studies extend` that do the same as the hidden field `_WAIT`."""
_MORE_TRIALS = 10
_ENDED_BY_LIMIT = (
    StudyReasonCode.GPU_SECONDS_USED,
    StudyReasonCode.WALL_SECONDS_USED,
    StudyReasonCode.NO_AGREEMENT,
)
"""Reasons for which a study fails if a limit of its budget leaves its search too few trials."""


@dataclass(frozen=True)
class NextStep:
    """Action that the page proposes to the user as the next step."""

    text: str
    label: str = ""
    """Label of the button; empty if the step has no button."""
    href: str = ""
    """Address of the page that the button opens; empty for a button that sends a form."""
    action: str = ""
    """Address to which the button sends a form; empty for a button that only opens a page."""
    fields: tuple[tuple[str, str], ...] = ()
    """Hidden fields of the form."""
    command: str = ""
    """Shell command that does what the button does, or what follows it; empty if the step has no command. It asks the
    service that `shardtune` asks by default."""

    @property
    def continues_study(self) -> bool:
        """Whether the button continues the study, whose runs need the hardware and software of the earlier ones."""
        return self.action.endswith("/extend")

    @property
    def repeats_study(self) -> bool:
        """Whether the button starts a new study like this one, on the present hardware and software."""
        return self.action.endswith("/rerun")


def next_step(study: Study, recommended: Recommended | None, fresh: StudyFreshness, now: datetime) -> NextStep | None:
    """Return the next step that a study's page or card proposes to the user; None for a study that runs or was
    deleted."""
    link = f"/studies/{study.study_id}"
    if study.state.is_open or study.deleted_at is not None:
        return None
    if study.system_study is not None:
        return NextStep(
            "The service started this study, and has recorded its outcome.", "See the schedules", "/schedules"
        )
    if study.result is None:
        return _limit_to_raise(study, now) or _without_answer(study, link)
    if recommended is not None and (again := _being_measured_again(recommended)) is not None:
        return again
    # An open verdict comes first: who approves it gives training jobs what may be noise.
    if recommended is not None and recommended.state == "proposed" and not is_open(study.result):
        text = "A person has to approve this answer before training jobs get it."
        return NextStep(text, "Approve", action=f"{link}/recommendation/approve")
    unused = _unused_answer(recommended, link) if recommended is not None else None
    if unused is not None:
        return unused
    if fresh.word == "stale" or (recommended is not None and recommended.is_superseded):
        text = f"Measure it again: hardware or software has changed since ({fresh.changes or 'see the reasons'})."
        return NextStep(text, "Run again", action=f"{link}/rerun", fields=_wait(study.result))
    if is_open(study.result):
        return _open_verdict(study, study.result, link, now)
    return _decided(study, study.result, link, now)


def is_open(result: StudyResult) -> bool:
    """Whether further runs may decide a result's verdict. False for a decided verdict, and if no configuration but the
    baseline could be run in pairs."""
    has_pairs = result.verdict is Verdict.UNDECIDED and result.final_comparison is not None
    return has_pairs or result.verdict is Verdict.TOO_BUSY


def _wait(result: StudyResult) -> tuple[tuple[str, str], ...]:
    """Return the hidden form field that makes the runs of a repeated study wait for a quiet machine. Empty unless a
    busy machine left the verdict open."""
    return _WAIT if result.verdict is Verdict.TOO_BUSY else ()


def _being_measured_again(recommended: Recommended) -> NextStep | None:
    """Return the next step "wait" while the service measures this answer again; None otherwise."""
    again = recommended.again
    if again is None or again.is_over or recommended.is_superseded:
        return None
    if again.study_id is not None:
        return NextStep("Wait: another study is measuring this answer again.", "Open it", f"/studies/{again.study_id}")
    text = "Wait: this answer will be measured again, and nobody has to ask for it."
    return NextStep(text, "See the schedules", "/schedules")


def _unused_answer(recommended: Recommended, link: str) -> NextStep | None:
    """Return the next step for an answer that is not recommended to training jobs; None if it is recommended."""
    is_unused = recommended.state in (RecommendationState.RETIRED, RecommendationState.REJECTED)
    other = recommended.recommended_study
    if other is not None and (is_unused or recommended.is_superseded):
        return NextStep("Training jobs get the answer of another study.", "Open it", f"/studies/{other}")
    if not is_unused:
        return None
    text = f"Training jobs do not get this answer: it was {recommended.state}. Run the study again for another."
    return NextStep(text, "Run again", action=f"{link}/rerun")


def _limit_to_raise(study: Study, now: datetime) -> NextStep | None:
    """Return the next step for a study that failed because its limit of GPU-seconds or time was used up before it had an
    answer; None for other studies."""
    budget, end = study.spec.budget, study.finished_at or now
    if study.state is not StudyState.FAILED or study.model_summary is None or study.reason_code not in _ENDED_BY_LIMIT:
        return None
    elapsed_s = (end - (study.started_at or study.created_at)).total_seconds()
    reason = stopping.used_up(budget, sum(study.trials.values()), study.gpu_seconds, elapsed_s)
    used_up = {
        StudyReasonCode.GPU_SECONDS_USED: ("gpu", budget.max_gpu_seconds, study.gpu_seconds),
        StudyReasonCode.WALL_SECONDS_USED: ("wall", budget.max_wall_seconds, 0.0),
    }
    if reason is None or reason.code not in used_up:
        return None
    unit, limit, spent = used_up[reason.code]
    more = ceil(max(limit or 0.0, spent))
    text = "Raise its limit, here by what it has used: it goes on from its trials. Run again, it would end in the same way."
    return NextStep(text, command=f"shardtune studies extend {study.study_id} --add-{unit}-seconds {more}")


def _without_answer(study: Study, link: str) -> NextStep:
    fits_nowhere = study.state is StudyState.FAILED and study.rejected and not study.trials
    if fits_nowhere or study.reason_code == StudyReasonCode.NOTHING_FEASIBLE:
        text = (
            "Running it again would fail again. If the memory above is what a GPU really has, change the study: a shorter "
            "sequence, a smaller model, or more or larger GPUs. The form predicts what fits."
        )
        return NextStep(text, "Change the study", new_study_link(study))
    if study.state is StudyState.CANCELLED:
        return NextStep(
            "Run it again for an answer, as a new study. This one and its figures stay.",
            "Run again",
            action=f"{link}/rerun",
        )
    return NextStep(
        "Remove the cause that is named above, then run the study again.", "Run again", action=f"{link}/rerun"
    )


def new_study_link(study: Study) -> str:
    """Return the address of the form for a new study, filled with this study's model, GPUs and sizes as far as the
    form has fields for them."""
    fields = {"sequence_length": study.spec.workload.sequence_length, "global_batch": study.spec.workload.global_batch}
    gpus = study.cluster.world_size
    chosen: dict[str, str | int] = {}
    if study.spec.model.name in model_presets.preset_names():
        chosen["model"] = study.spec.model.name
    with suppress(ValueError):
        if gpus.bit_count() == 1:
            chosen |= {"hardware": catalogue.find(study.cluster.gpu).name, "size": gpus.bit_length() - 1}
    return f"/new?{urlencode(chosen | fields)}"


def _open_verdict(study: Study, result: StudyResult, link: str, now: datetime) -> NextStep:
    more = more_pairs(study, result)
    if more is None:
        return _without_pairs(study, result, link, now)
    pairs = counted(more.pairs, "more pair")
    fields = (("add_pairs", str(more.pairs)), *(_WAIT if more.waits_for_quiet else ()))
    command = f"shardtune studies extend {study.study_id} --add-pairs {more.pairs}"
    if more.waits_for_quiet:
        waits = f"Their runs wait up to {QUIET_WAIT_MINUTES} minutes in all until the machine is quiet; then they run anyway."
        text = f"Compare candidate and baseline in {pairs}. {waits}"
        command += _WAIT_WORDS
        return NextStep(text, f"Run {pairs}", action=f"{link}/extend", fields=fields, command=command)
    text = "Run more pairs of candidate and baseline. The study ends as soon as they decide it."
    return NextStep(text, f"Run {pairs}", action=f"{link}/extend", fields=fields, command=command)


def _without_pairs(study: Study, result: StudyResult, link: str, now: datetime) -> NextStep:
    """Return the next step for an open verdict that more pairs would not decide, or whose study can run none."""
    if study.state is StudyState.FAILED and extension.why_no_trials(study, _MORE_TRIALS, now) is None:
        text = f"Remove the cause of the failure ({study.reason}), then let the search run {_MORE_TRIALS} more trials."
        waits = f" Their runs wait up to {QUIET_WAIT_MINUTES} minutes in all for quiet." if _wait(result) else ""
        return _more_trials(study, f"{text} A new comparison follows them.{waits}", link, _wait(result))
    if study.state is StudyState.CANCELLED and result.verdict is Verdict.UNDECIDED:
        return NextStep(
            "It was cancelled before it was decided. Run it again for an answer.", "Run again", action=f"{link}/rerun"
        )
    if result.undecided is not None and result.undecided.is_extension_off:
        text = "Run it again with whole steps (budget.short_steps false): they contradict the step times of the pairs."
        fields = (("whole_steps", "true"),)
        return NextStep(text, "Run again with whole steps", action=f"{link}/rerun", fields=fields)
    if result.undecided is not None and not result.undecided.disturbed_counted_runs:
        text = f"{_kept(study, result)}: the two cannot be told apart here. To try once more, run the study again."
        return NextStep(text, "Run again", action=f"{link}/rerun")
    text = f"Run it again when nothing else uses the machine. Its runs then wait up to {QUIET_WAIT_MINUTES} minutes for quiet."
    return NextStep(text, "Run again, and wait for quiet", action=f"{link}/rerun", fields=_WAIT)


def _kept(study: Study, result: StudyResult) -> str:
    """Return what to train with while the verdict is open, as the beginning of a sentence."""
    if result.best.trial_number != result.baseline.trial_number:
        return "Either will do"
    is_users = study.spec.baseline is not None and not own_baseline.is_replaced(study)
    return "Train on as you do today" if is_users else "Train with the baseline"


def _decided(study: Study, result: StudyResult, link: str, now: datetime) -> NextStep:
    export = f"shardtune export {study.study_id} --out best"
    is_replaced = own_baseline.is_replaced(study)
    before = f"{own_baseline.why_replaced(study)} " if is_replaced else ""
    if result.best.trial_number != result.baseline.trial_number:
        # Own code has its own launcher: its export has no script to start.
        files = (
            "config.json holds the settings"
            if study.spec.model.is_own
            else "the export holds the files for your launcher"
        )
        return NextStep(f"{before}Train with it: {files}.", "Export", f"{link}/export", command=export)
    if study.spec.baseline is None or is_replaced:
        name = "configuration" if is_replaced else "documented default"
        text = f"{before}Train with it: nothing that was tried is faster than this {name}."
        return NextStep(text, "Export", f"{link}/export", command=export)
    if study.state is StudyState.CANCELLED:
        text = "Train on as you do today. The study was cancelled: run it again to look further."
        return NextStep(text, "Run again", action=f"{link}/rerun")
    reason = extension.why_no_trials(study, _MORE_TRIALS, now)
    if reason is not None:
        return NextStep(f"Train on as you do today: {reason}.")
    text = f"Train on as you do today. To look further, let the search run {_MORE_TRIALS} more trials."
    return _more_trials(study, text, link)


def _more_trials(study: Study, text: str, link: str, wait: tuple[tuple[str, str], ...] = ()) -> NextStep:
    """Return the next step that extends a study's search. `wait`: hidden field that makes its runs wait for a quiet
    machine."""
    fields = (("add_trials", str(_MORE_TRIALS)), *wait)
    command = f"shardtune studies extend {study.study_id} --add-trials {_MORE_TRIALS}{_WAIT_WORDS if wait else ''}"
    return NextStep(text, f"Add {_MORE_TRIALS} trials", action=f"{link}/extend", fields=fields, command=command)

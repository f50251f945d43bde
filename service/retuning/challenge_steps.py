"""Retunes from their start to their outcome: challenge the incumbent first, search wide only if the ranking moved.

Every step is one transaction that holds the study, the case and the retune (note [lock order] in db.session), and looks
again before it writes: any number of replicas may take it at once, and a service killed in between takes it again.
"""

import hashlib
import logging
from datetime import timedelta
from typing import assert_never

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import Gain, RetuneOutcome, RetuneState
from shardtune.api_schemas.studies.study import Budget, StudyState, Verdict
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import best, retunes, studies, workers
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.http.errors import Conflict
from shardtune.service.lifecycle import transitions
from shardtune.service.process.context import Context
from shardtune.service.recommendations import renewals
from shardtune.service.retuning import challenge_findings, challengers, queue, system_studies
from shardtune.service.retuning.records import finish
from shardtune.service.workers import compatibility
from shardtune.tuner.verdict import challenge

log = logging.getLogger(__name__)

_PATIENCE = timedelta(days=1)
"""A retune waits this long for a worker of its fingerprint that has gone away."""


def start(context: Context, retune: RetuneRow) -> str:
    """Create the challenge of a retune and return the study's id; called again, it returns the same.

    Raises:
        Conflict: nobody could run it now, or there is nothing to challenge.
    """
    study_id = _study_id(retune, "challenge")
    with context.db.read() as session:
        if studies.get(session, study_id) is not None:
            return study_id
        row = best.current(session, retune.project_id, retune.target_key)
        if row is None or row.serving is None:
            raise Conflict("nothing_to_decide", f"nothing is served under {retune.target_key}; there is no incumbent")
        origin = system_studies.origin(session, row.serving)
        worker = system_studies.worker_for(context, session, row, retune.cause)
        chosen, notes = challengers.choose(context.planner_cache, session, row, origin, worker.fingerprint_key)
        system_study = SystemStudy(
            kind=SystemStudyKind.CHALLENGE, retune_id=retune.id, challengers=chosen, warm_study_id=origin.id
        )
        incumbent = row.serving.answer.result.best.config
    budget = Budget(max_trials=1 + len(chosen), max_pairs=challenge.PAIRS)
    try:
        with context.db.write() as session:
            earlier = studies.get(session, origin.id)
            assert earlier is not None
            key = worker.fingerprint_key
            system_studies.add(session, study_id, earlier, key, incumbent, system_study, budget, notes, context.now())
    except IntegrityError:
        log.info("another replica began the challenge", extra={"retune": retune.id, "study": study_id})
    return study_id


def advance(context: Context, retune: RetuneRow) -> None:
    """Take the next step of a running retune: judge what has ended, begin the search, or see that nobody can go on."""
    with context.db.write() as session:
        ids = [name for name in (retune.challenge_study_id, retune.search_study_id) if name is not None]
        held = [studies.lock(session, name) for name in ids]
        if not held:
            return
        known = best.current(session, retune.project_id, retune.target_key)
        old = best.lock(session, known.project_id, known.target_key) if known is not None else None
        row = retunes.lock(session, retune.id)
        if row.state is not RetuneState.RUNNING or row.search_study_id != retune.search_study_id:
            return
        step = _Step(context, session, row, old, held)
        if held[-1].state.is_open:
            step.watch()
        elif len(held) == 1:
            step.judge_challenge()
        else:
            step.judge_search()


class _Step:
    """One step of a retune, under its locks."""

    def __init__(
        self, context: Context, session: Session, retune: RetuneRow, old: TuningTargetRow | None, held: list[StudyRow]
    ) -> None:
        self.context, self.session, self.retune, self.old = context, session, retune, old
        self.challenge, self.study = held[0], held[-1]
        self.now = context.now()

    def judge_challenge(self) -> None:
        """The challenge has ended: keep the incumbent, search wide, or leave it."""
        if not self._is_about_what_is_served():
            return
        if self.study.state is StudyState.COMPLETE:
            ratios = challenge_findings.log_ratios(self.study)
            finding = challenge_findings.of(self.session, self.study)
            match finding:
                case "kept":
                    self._keep()
                case "faster":
                    self._search(self.study.baseline is not None)
                case "inconclusive":
                    self._leave(
                        RetuneOutcome.INCONCLUSIVE, f"{challenge_findings.seen(ratios)}, which could not be shown"
                    )
                case _:
                    assert_never(finding)
        elif self.study.state is StudyState.FAILED and challenge_findings.has_fallen(self.session, self.study):
            self._search(with_incumbent=False)
        else:
            self._leave_failed()

    def judge_search(self) -> None:
        """The wide search has ended: its answer, else the challenge's, replaces the incumbent."""
        if not self._is_about_what_is_served():
            return
        result = self.study.result
        fell = self.challenge.state is StudyState.FAILED
        if result is not None and (fell or result.verdict is Verdict.CONFIRMED):
            self._replace(self.study, f"{self.challenge.reason}; searched again" if fell else "")
        elif not fell:
            why = self.study.reason if result is None else "the search found nothing faster"
            self._replace(self.challenge, f"by the challenge; {why}")
        else:
            self._leave_failed()

    def watch(self) -> None:
        """Give up a study whose fingerprint no worker has any longer, and begin anew where another one could run it."""
        known = workers.seen_since(self.session, self.now - _PATIENCE)
        if any(compatibility.may_run(worker, self.study) for worker in known):
            return
        reason = "no worker has the fingerprint any longer that it was measured on"
        transitions.end_study(self.session, self.study, StudyState.CANCELLED, reason, self.now)
        cause, changes = self.retune.cause, self.retune.changes
        finish(self.context, self.session, self.retune, RetuneOutcome.INCONCLUSIVE, reason)
        queue.request(
            self.session,
            project_id=self.retune.project_id,
            target_key=self.retune.target_key,
            cause=cause,
            changes=changes,
            schedule_id=self.retune.schedule_id,
            not_before=self.now,
            now=self.now,
        )

    def _keep(self) -> None:
        assert self.old is not None
        ratios = challenge_findings.log_ratios(self.study)
        why = f"kept: {challenge_findings.seen(ratios) if ratios else challengers.unpaired(self.session, self.study)}"
        renewals.keep(self.session, self.old, self.study, why, self.now)
        finish(self.context, self.session, self.retune, RetuneOutcome.KEPT, why)

    def _replace(self, study: StudyRow, note: str) -> None:
        assert self.old is not None and study.result is not None
        speedup = study.result.speedup
        is_gain = speedup is not None and study.result.baseline.config == study.baseline
        gain = Gain(value=speedup.value, ci95=speedup.ci95) if is_gain and speedup is not None else None
        words = (
            f"replaced {challenge_findings.percent(speedup)}"
            if gain is not None and speedup is not None
            else "replaced"
        )
        why = f"{words}: {note}" if note else words
        outcome = renewals.replace(self.context, self.session, self.old, study, why)
        finish(self.context, self.session, self.retune, RetuneOutcome.REPLACED, f"{why}; it {outcome}", gain)

    def _search(self, with_incumbent: bool) -> None:
        """Search wide, with what the challenge ran at the front and the old search's trials as a guide."""
        assert self.old is not None and self.old.serving is not None and self.study.system_study is not None
        origin = system_studies.origin(self.session, self.old.serving)
        ran = [obs for obs in challengers.observed(self.session, self.study) if obs.state is TrialState.COMPLETE]
        first = tuple(obs.config for obs in ran if obs.config != self.study.baseline)
        system_study = SystemStudy(
            kind=SystemStudyKind.SEARCH, retune_id=self.retune.id, challengers=first, warm_study_id=origin.id
        )
        assert self.study.fingerprint_key is not None
        notes = [f"guided by the trials of {origin.id}, which were measured earlier; their figures are not compared"]
        study = system_studies.add(
            self.session,
            _study_id(self.retune, "search"),
            origin,
            self.study.fingerprint_key,
            self.study.baseline if with_incumbent else None,
            system_study,
            origin.spec.budget,
            notes,
            self.now,
        )
        self.retune.search_study_id = study.id
        self.retune.reason = "the ranking moved: searching"
        log.info("the ranking moved, searching", extra={"retune": self.retune.id, "study": study.id})

    def _leave(self, outcome: RetuneOutcome, why: str) -> None:
        assert self.old is not None
        renewals.leave(self.session, self.old, f"{outcome.value}: {why}", self.now)
        finish(self.context, self.session, self.retune, outcome, f"{outcome.value}: {why}")

    def _leave_failed(self) -> None:
        is_cancelled = self.study.state is StudyState.CANCELLED
        outcome = RetuneOutcome.SKIPPED if is_cancelled else RetuneOutcome.FAILED
        self._leave(outcome, f"study {self.study.id} was {self.study.state.value}: {self.study.reason}")

    def _is_about_what_is_served(self) -> bool:
        if self.old is not None and renewals.is_incumbent(self.old, self.challenge):
            return True
        why = "what is served was changed while it ran"
        finish(self.context, self.session, self.retune, RetuneOutcome.INCONCLUSIVE, why)
        return False


def _study_id(retune: RetuneRow, kind: str) -> str:
    """The same for each try of the same retune."""
    return f"study-{hashlib.sha256(f'{retune.id}:{kind}'.encode()).hexdigest()[:12]}"

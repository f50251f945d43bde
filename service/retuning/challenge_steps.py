"""Steps of a retune from start to outcome: challenge the incumbent (recommended configuration) first, and search wide
only if the ranking has changed.

Every step is one transaction that locks study, target and retune (note [lock order] in db.session) and checks again
before it writes. Several replicas may take a step at once, and a service killed during a step takes it again.
"""

import hashlib
import logging
from datetime import timedelta
from typing import assert_never

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import Gain, RetuneOutcome, RetuneState
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.study_state import StudyState
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
from shardtune.service.retuning.records import end_retune
from shardtune.service.workers import compatibility, protocol_limits
from shardtune.tuner.verdict import challenge

log = logging.getLogger(__name__)

_WORKER_PATIENCE = timedelta(days=1)
"""Time for which a retune (repeated measurement of a recommendation) waits until a worker with the right hardware and
software versions returns.
"""


def start_challenge(context: Context, retune: RetuneRow) -> str:
    """Create the challenge study of a retune (repeated measurement of a recommendation); returns the study's id. A
    challenge compares the recommended configuration with up to three others. A repeated call returns the same id.

    Raises:
        Conflict: no worker could run the study now, or the tuning target has no recommendation to challenge.
    """
    study_id = _study_id(retune, "challenge")
    with context.db.read() as session:
        if studies.get(session, study_id) is not None:
            return study_id
        row = best.current_target(session, retune.project_id, retune.target_key)
        if row is None or row.recommended is None:
            raise Conflict(
                "nothing_to_decide", f"nothing is recommended under {retune.target_key}, so there is no incumbent"
            )
        origin = system_studies.search_behind(session, row.recommended)
        # Chosen outside the write transaction: predicting the whole space takes too long to hold a row.
        worker = system_studies.choose_worker(context, session, row, retune.cause)
        chosen_configs, notes = challengers.choose_challengers(
            context.planner_cache, session, row, origin, worker.fingerprint_key
        )
        system_study = SystemStudy(
            kind=SystemStudyKind.CHALLENGE, retune_id=retune.id, challengers=chosen_configs, warm_study_id=origin.id
        )
        incumbent = row.recommended.answer.result.best.config
    budget = Budget(
        max_trials=1 + len(chosen_configs),
        max_pairs=challenge.MAX_PAIRS,
        repeat_disturbed=origin.spec.budget.repeat_disturbed,
        short_steps=origin.spec.budget.short_steps,
    )
    try:
        with context.db.write() as session:
            earlier = studies.get(session, origin.id)
            assert earlier is not None
            key = worker.fingerprint_key
            system_studies.add_system_study(
                session, study_id, earlier, key, incumbent, system_study, budget, notes, context.now()
            )
    except IntegrityError:
        log.info("another replica began the challenge", extra={"retune": retune.id, "study": study_id})
    return study_id


def advance_retune(context: Context, retune: RetuneRow) -> None:
    """Take the next step of a running retune (repeated measurement of a recommendation): judge its ended study, begin
    a wide search if its challenge requires one, or detect that no worker can continue.
    """
    with context.db.write() as session:
        ids = [name for name in (retune.challenge_study_id, retune.search_study_id) if name is not None]
        locked_studies = [studies.lock(session, name) for name in ids]
        if not locked_studies:
            return
        # Studies first, then the target, then the retune: the order of note [lock order].
        current = best.current_target(session, retune.project_id, retune.target_key)
        target = best.lock(session, current.project_id, current.target_key) if current is not None else None
        row = retunes.lock(session, retune.id)
        # Another replica has taken this step since the retune was read.
        if row.state is not RetuneState.RUNNING or row.search_study_id != retune.search_study_id:
            return
        step = _Step(context, session, row, target, locked_studies)
        if locked_studies[-1].state.is_open:
            step.give_up_without_worker()
        elif len(locked_studies) == 1:
            step.judge_challenge()
        else:
            step.judge_search()


class _Step:
    """One step of a retune (repeated measurement of a recommendation), with the rows of the retune, its studies and
    its tuning target (model, workload, cluster) locked.
    """

    def __init__(
        self,
        context: Context,
        session: Session,
        retune: RetuneRow,
        target: TuningTargetRow | None,
        locked_studies: list[StudyRow],
    ) -> None:
        self.context, self.session, self.retune, self.target = context, session, retune, target
        self.challenge, self.study = locked_studies[0], locked_studies[-1]
        self.now = context.now()

    def judge_challenge(self) -> None:
        """Judge the ended challenge of a retune, in which the incumbent (recommended configuration) ran against up to
        three others. Then keep the incumbent, begin a wide search, or record an inconclusive result.
        """
        if not self._is_incumbent_current():
            return
        if self.study.state is StudyState.COMPLETE:
            ratios = challenge_findings.log_ratios(self.study)
            finding = challenge_findings.finding_of(self.session, self.study)
            match finding:
                case "kept":
                    self._keep_incumbent()
                case "faster":
                    self._begin_search(self.study.baseline is not None)
                case "inconclusive":
                    self._record_inconclusive(
                        RetuneOutcome.INCONCLUSIVE,
                        f"{challenge_findings.describe_pairs(ratios)}, which could not be shown",
                    )
                case _:
                    assert_never(finding)
        elif self.study.state is StudyState.FAILED and challenge_findings.has_infeasible_incumbent(
            self.session, self.study
        ):
            self._begin_search(with_incumbent=False)
        else:
            self._record_failure()

    def judge_search(self) -> None:
        """Judge the ended wide search of a retune (repeated measurement of a recommendation). Its result replaces the
        incumbent (recommended configuration); if it found nothing faster, the winner of the earlier challenge does.
        """
        if not self._is_incumbent_current():
            return
        result = self.study.result
        incumbent_is_infeasible = self.challenge.state is StudyState.FAILED
        if result is not None and (incumbent_is_infeasible or result.verdict is Verdict.CONFIRMED):
            self._replace_incumbent(
                self.study, f"{self.challenge.reason}; searched again" if incumbent_is_infeasible else ""
            )
        # The challenge has shown a faster configuration already, so a search that finds nothing takes nothing away.
        elif not incumbent_is_infeasible:
            is_too_busy = result is not None and result.verdict is Verdict.TOO_BUSY
            found = "its machine was too busy" if is_too_busy else "the search confirmed nothing faster"
            reason = self.study.reason if result is None else found
            self._replace_incumbent(self.challenge, f"by the challenge; {reason}")
        else:
            self._record_failure()

    def give_up_without_worker(self) -> None:
        """End the study of a retune (repeated measurement of a recommendation) and request the retune again, if no
        recent worker has the study's fingerprint (hardware and software versions) and can read its runs.
        """
        recent_workers = workers.seen_since(self.session, self.now - _WORKER_PATIENCE)
        able = [worker for worker in recent_workers if compatibility.can_run(worker, self.study)]
        if any(protocol_limits.reads_runs_of(self.study, worker) for worker in able):
            return
        reason = (
            "no worker that reads its runs has the fingerprint of the measurement any longer"
            if able
            else "no worker has the fingerprint of the measurement any longer"
        )
        # Ended and requested again, not continued: runs on another fingerprint would not compare with those before.
        no_worker = StudyReason(code=StudyReasonCode.NO_WORKER, text=reason)
        transitions.end_study(self.session, self.study, StudyState.CANCELLED, no_worker, self.now)
        cause, changes = self.retune.cause, self.retune.changes
        end_retune(self.context, self.session, self.retune, RetuneOutcome.INCONCLUSIVE, reason)
        queue.request_retune(
            self.session,
            project_id=self.retune.project_id,
            target_key=self.retune.target_key,
            cause=cause,
            changes=changes,
            schedule_id=self.retune.schedule_id,
            not_before=self.now,
            now=self.now,
        )

    def _keep_incumbent(self) -> None:
        assert self.target is not None
        ratios = challenge_findings.log_ratios(self.study)
        explanation = (
            challenge_findings.describe_pairs(ratios)
            if ratios
            else challengers.describe_unpaired(self.session, self.study)
        )
        renewals.renew_incumbent(self.session, self.target, self.study, f"kept: {explanation}", self.now)
        end_retune(self.context, self.session, self.retune, RetuneOutcome.KEPT, explanation)

    def _replace_incumbent(self, study: StudyRow, note: str) -> None:
        assert self.target is not None and study.result is not None
        speedup = study.result.speedup
        # A gain is reported only if it is relative to the incumbent.
        is_gain = speedup is not None and study.result.baseline.config == study.baseline
        gain = Gain(value=speedup.value, ci95=speedup.ci95) if is_gain and speedup is not None else None
        summary = (
            f"replaced {challenge_findings.percent(speedup)}"
            if gain is not None and speedup is not None
            else "replaced"
        )
        explanation = f"{summary}: {note}" if note else summary
        outcome = renewals.replace_incumbent(self.context, self.session, self.target, study, explanation)
        end_retune(
            self.context,
            self.session,
            self.retune,
            RetuneOutcome.REPLACED,
            f"{note}; it {outcome}" if note else f"it {outcome}",
            gain,
        )

    def _begin_search(self, with_incumbent: bool) -> None:
        """Begin the wide search of a retune (repeated measurement of a recommendation). The trials of the retune's
        challenge are its first configurations, and the trials of the search that found the recommendation guide it.
        """
        assert self.target is not None and self.target.recommended is not None and self.study.system_study is not None
        origin = system_studies.search_behind(self.session, self.target.recommended)
        measured_trials = [
            obs for obs in challengers.observations_of(self.session, self.study) if obs.state is TrialState.COMPLETE
        ]
        initial_configs = tuple(obs.config for obs in measured_trials if obs.config != self.study.baseline)
        system_study = SystemStudy(
            kind=SystemStudyKind.SEARCH, retune_id=self.retune.id, challengers=initial_configs, warm_study_id=origin.id
        )
        assert self.study.fingerprint_key is not None
        # It waits for windows and budgets of retunes, which are no fault of its own.
        budget = origin.spec.budget.model_copy(update={"max_wall_seconds": None})
        notes = [f"guided by the trials of {origin.id}, which were measured earlier; their figures are not compared"]
        study = system_studies.add_system_study(
            self.session,
            _study_id(self.retune, "search"),
            origin,
            self.study.fingerprint_key,
            self.study.baseline if with_incumbent else None,
            system_study,
            budget,
            notes,
            self.now,
        )
        self.retune.search_study_id = study.id
        self.retune.reason, self.retune.waits_for_budget = "the ranking moved: searching", False
        log.info("the ranking moved, searching", extra={"retune": self.retune.id, "study": study.id})

    def _record_inconclusive(self, outcome: RetuneOutcome, explanation: str) -> None:
        assert self.target is not None
        renewals.record_inconclusive(self.session, self.target, f"{outcome.value}: {explanation}", self.now)
        end_retune(self.context, self.session, self.retune, outcome, explanation)

    def _record_failure(self) -> None:
        is_cancelled = self.study.state is StudyState.CANCELLED
        outcome = RetuneOutcome.SKIPPED if is_cancelled else RetuneOutcome.FAILED
        self._record_inconclusive(outcome, f"study {self.study.id} was {self.study.state.value}: {self.study.reason}")

    def _is_incumbent_current(self) -> bool:
        # A person, or another study, may have changed the recommendation while the retune ran.
        if self.target is not None and renewals.is_incumbent(self.target, self.challenge):
            return True
        explanation = "the recommendation changed while the retune ran"
        end_retune(self.context, self.session, self.retune, RetuneOutcome.INCONCLUSIVE, explanation)
        return False


def _study_id(retune: RetuneRow, kind: str) -> str:
    """Id of a study of a retune (repeated measurement of a recommendation). It is the same each time the same step is
    attempted, so that a repeated step adds no second study.
    """
    return f"study-{hashlib.sha256(f'{retune.id}:{kind}'.encode()).hexdigest()[:12]}"

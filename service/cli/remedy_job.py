"""Measure a finding's remedy with a small study on this machine: its baseline is the traced trial, its space the remedy."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding, RemedyResult
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.cli.connection import connect_or_start, find_study
from shardtune.service.cli.errors import NothingFeasible
from shardtune.service.cli.explain.trace_run import RecordedTrial
from shardtune.service.cli.tune.job import tune
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.tuner.diagnosis.findings import traced_trial

_PAIRS = 2 * FEWEST_PAIRS
"""Maximum number of paired runs that measure a remedy; a remedy that needs more to be confirmed is hardly worth the
change."""
_OUTCOMES: dict[Verdict, Literal["faster", "not_faster", "undecided", "too_busy"]] = {
    Verdict.CONFIRMED: "faster",
    Verdict.NOT_FASTER: "not_faster",
    Verdict.UNDECIDED: "undecided",
    Verdict.TOO_BUSY: "too_busy",
}
LEFT_OUT = frozenset(
    {
        *("target", "confirms", "consider", "consider_steps", "most_loss_difference"),
        *("seed", "checkpoint_every_s", "wait_for_worker_s", "wait_for_quiet_s"),
    }
)
"""Names of the fields that the study of a remedy does not take from the traced trial's study; they keep their
defaults."""
_NO_REMEDY = "no finding proposes a change of knobs that could be measured"


def measure_remedy(
    recorded: RecordedTrial, diagnosis: Diagnosis, state_dir: Path, worker_options: Sequence[str]
) -> Diagnosis:
    """Measure the first remedy of a diagnosis that changes knobs. Return the diagnosis with the measured result, or
    with a note if no remedy changes knobs."""
    for index, finding in enumerate(diagnosis.findings):
        request = remedy_study(recorded, finding)
        if request is not None:
            sys.stderr.write(f"measuring the remedy: {finding.remedy}\n")
            measured = finding.model_copy(
                update={"remedy_result": _run_study(request, recorded, state_dir, worker_options)}
            )
            return diagnosis.model_copy(
                update={"findings": (*diagnosis.findings[:index], measured, *diagnosis.findings[index + 1 :])},
            )
    return diagnosis.model_copy(update={"notes": (*diagnosis.notes, _NO_REMEDY)})


def remedy_study(recorded: RecordedTrial, finding: Finding) -> StudyRequest | None:
    """Return the study that measures a finding's remedy; None if the remedy changes no knob, or the study's search space excludes it."""
    spec, task = recorded.study.spec, recorded.task
    trial = traced_trial.of_study(recorded.study, task.config, recorded.measured)
    limits = trial.limits_to(finding.knobs) if trial is not None and finding.knobs else None
    if limits is None:
        return None
    budget = Budget(
        max_trials=2,
        max_pairs=_PAIRS,
        repeat_disturbed=spec.budget.repeat_disturbed,
        short_steps=spec.budget.short_steps,
        resume_check=False,
        sustained_run_s=0,
    )
    kept = {name: getattr(spec, name) for name in StudyRequest.model_fields if name not in LEFT_OUT}
    changes: dict[str, Any] = {
        "cluster": recorded.study.cluster,
        "budget": budget,
        "baseline": task.config,
        "space": limits,
        "sampler": "random",
    }
    return StudyRequest(**kept | changes)


def _run_study(
    request: StudyRequest, recorded: RecordedTrial, state_dir: Path, worker_options: Sequence[str]
) -> RemedyResult:
    # An id of our own: another `tune` on this state directory may create the newest study meanwhile.
    study_id = f"study-{uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="shardtune-try-") as name:
        file = Path(name) / "study.json"
        file.write_text(request.model_dump_json())
        options = TuneOptions(
            study=file,
            ranks=None,
            max_trials=None,
            memory_gib=None,
            resume=False,
            state_dir=state_dir,
            out=state_dir / "tried" / recorded.study.study_id,
            as_json=False,
            allowed=tuple(worker_options),
            study_id=study_id,
        )
        # stdout holds the answer of `explain` alone; the answer of `tune` is progress here.
        with redirect_stdout(sys.stderr):
            try:
                tune(options)
            except NothingFeasible as error:
                sys.stderr.write(f"{error}\n")
    with connect_or_start(None, state_dir) as client:
        study = find_study(client, study_id)
        return remedy_result(study, client.trials(study.study_id), client.rejections(study.study_id))


def remedy_result(study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection]) -> RemedyResult:
    """Return the result of the study that measured a remedy: its verdict, or the reason why there is no verdict."""
    result = study.result
    if result is not None and result.speedup is not None:
        measured = result.speedup
        return RemedyResult(
            study_id=study.study_id,
            outcome=_OUTCOMES[result.verdict],
            speedup=measured.value,
            ci95=measured.ci95,
            pairs=measured.pairs,
        )
    # The baseline ran before (it is the traced trial): only the remedy's own failures explain a missing verdict.
    own = [trial for trial in trials if trial.config != study.spec.baseline]
    reasons = [f"{trial.failure.kind}: {trial.failure.message}" for trial in own if trial.failure is not None]
    reasons += [rejection.reason for rejection in rejections]
    return RemedyResult(
        study_id=study.study_id, outcome="does_not_run", why=(reasons or [study.reason or "it has no runs"])[0]
    )

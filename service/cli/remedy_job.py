"""Measure a remedy: a small study of `tune` on this machine, whose baseline is the traced trial and whose space is the remedy."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from uuid import uuid4

from shardtune.api_schemas.studies.study import FEWEST_PAIRS, Budget, Study, StudyRequest, Verdict
from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding, Tried
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.cli.connection import connected, study_named
from shardtune.service.cli.errors import NothingFeasible
from shardtune.service.cli.explain.trace_run import Recorded
from shardtune.service.cli.tune.job import tune
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.tuner.diagnosis.findings import traced_trial

_PAIRS = 2 * FEWEST_PAIRS
"""Of validation runs at most: what needs more to be shown is hardly worth the change."""
_OUTCOMES = {Verdict.CONFIRMED: "faster", Verdict.NOT_FASTER: "not_faster", Verdict.UNDECIDED: "undecided"}
_NOTHING = "no finding has a change of knobs that could be tried"


def tried(recorded: Recorded, found: Diagnosis, state_dir: Path, worker_options: Sequence[str]) -> Diagnosis:
    """The diagnosis with what came of the first remedy that is a change of knobs; with a note where none is."""
    for place, finding in enumerate(found.findings):
        request = request_of(recorded, finding)
        if request is not None:
            sys.stderr.write(f"trying: {finding.remedy}\n")
            told = finding.model_copy(update={"tried": _run(request, recorded, state_dir, worker_options)})
            return found.model_copy(
                update={"findings": (*found.findings[:place], told, *found.findings[place + 1 :])},
            )
    return found.model_copy(update={"notes": (*found.notes, _NOTHING)})


def request_of(recorded: Recorded, finding: Finding) -> StudyRequest | None:
    """The study that would measure it; None where no knob changes it, or other values stand in the way."""
    spec, task = recorded.study.spec, recorded.task
    trial = traced_trial.of_study(recorded.study, task.config, recorded.measured)
    limits = trial.only(finding.knobs) if trial is not None and finding.knobs else None
    if limits is None:
        return None
    budget = Budget(max_trials=2, max_pairs=_PAIRS, repeat_disturbed=spec.budget.repeat_disturbed, resume_check=False)
    return StudyRequest(
        model=spec.model,
        workload=spec.workload,
        cluster=recorded.study.cluster,
        objective=spec.objective,
        budget=budget,
        baseline=task.config,
        space=limits,
        sampler="random",
    )


def _run(request: StudyRequest, recorded: Recorded, state_dir: Path, worker_options: Sequence[str]) -> Tried:
    # Another `tune` on this state directory may have the newest study.
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
        # What `tune` prints is progress here: stdout has one answer.
        with redirect_stdout(sys.stderr):
            try:
                tune(options)
            except NothingFeasible as error:
                sys.stderr.write(f"{error}\n")
    with connected(None, state_dir) as client:
        study = study_named(client, study_id)
        return outcome(study, client.trials(study.study_id), client.rejections(study.study_id))


def outcome(study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection]) -> Tried:
    """What the follow-up says of the remedy: its verdict, or why it has none."""
    result = study.result
    if result is not None and result.speedup is not None:
        measured = result.speedup
        return Tried(
            study_id=study.study_id,
            outcome=_OUTCOMES[result.verdict],
            speedup=measured.value,
            ci95=measured.ci95,
            pairs=measured.pairs,
        )
    own = [trial for trial in trials if trial.config != study.spec.baseline]
    reasons = [f"{trial.failure.kind}: {trial.failure.message}" for trial in own if trial.failure is not None]
    reasons += [rejection.reason for rejection in rejections]
    return Tried(
        study_id=study.study_id, outcome="does_not_run", why=(reasons or [study.reason or "it has no runs"])[0]
    )

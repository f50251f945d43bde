"""Tool `diagnose`: parts of a training step from traces on this machine, or from a run of a trial under the profiler."""

from collections.abc import Sequence
from pathlib import Path

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.diagnosis import PART_NAMES, CollectiveFigures, Diagnosis, Finding
from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.client import ServiceClient, ServiceRejected
from shardtune.service.mcp import measured_rows
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.schemas.figures import Figure, figure
from shardtune.service.mcp.schemas.study_answers import DiagnoseAnswer, DiagnosedCollective, DiagnosedFinding
from shardtune.service.mcp.schemas.study_arguments import DiagnoseArguments
from shardtune.service.mcp.study_tools import find_study
from shardtune.service.wording.diagnosis_words import (
    FINDING_TITLES,
    collective_in_words,
    remedy_in_words,
    summary_sentences,
)

_OF_STEP = "fraction of the step"
_TRACE = "profiler traces"
_MOST_COLLECTIVES = 6


def diagnose(product: Product, arguments: DiagnoseArguments) -> DiagnoseAnswer:
    """Diagnose a folder of traces, or a trial of a study."""
    with rejections(DiagnoseArguments):
        if arguments.trace_folder is not None:
            return _answer(_diagnose_folder(product, arguments), None)
        if arguments.study_id is None:
            raise ToolRejected(
                "trace_folder (missing): give a folder of traces, or study_id for a trial of a study (`last`: the newest)"
            )
        run = _diagnose_trial(product.service("diagnose"), arguments.study_id, arguments)
        return _answer(run.diagnosis, run)


def _diagnose_folder(product: Product, arguments: DiagnoseArguments) -> Diagnosis:
    folder = arguments.trace_folder
    assert folder is not None
    if arguments.study_id is not None or arguments.trial is not None:
        raise ToolRejected(f"trace_folder ({folder}) replaces study_id and trial; leave out one of them")
    if product.diagnose_folder is None:
        raise ToolRejected(
            f"trace_folder ({folder}): a service does not read files; run `shardtune mcp` on the machine with the traces, or "
            "give study_id and trial"
        )
    return product.diagnose_folder(Path(folder))


def _diagnose_trial(client: ServiceClient, study_id: str, arguments: DiagnoseArguments) -> TrialDiagnosis:
    study = find_study(client, study_id)
    number = arguments.trial
    if number is None:
        if study.result is None:
            raise ToolRejected(
                f"trial (missing): {study.study_id} is {study.state.value} and recommends nothing yet; name a trial"
            )
        number = study.result.best.trial_number
    stored = _stored(client, study.study_id, number)
    if stored is not None and (stored.state.is_open or stored.diagnosis is not None):
        return stored
    # Before the budget: the user need not think of one for a run that the service would reject.
    _check_traceable(study)
    _check_budget(client, study, number, arguments.max_gpu_seconds)
    return client.diagnose(study.study_id, number)


def _stored(client: ServiceClient, study_id: str, number: int) -> TrialDiagnosis | None:
    try:
        return client.diagnosis(study_id, number)
    except ServiceRejected as rejected:
        if rejected.status != 404:
            raise
        return None


def _check_traceable(study: Study) -> None:
    """Reject a trial that the service would not run under the profiler.

    Raises:
        ToolRejected: the study still runs, trains by a script of its own, or over several hosts.
    """
    if study.state.is_open:
        raise ToolRejected(
            f"study_id ({study.study_id}) is {study.state.value}, and a run under the profiler would disturb its "
            "measurements; call again when it has ended"
        )
    script, nodes = study.spec.model.script, study.cluster.nodes
    if script is not None:
        raise ToolRejected(f"model.script ({script}) trains by itself; record traces in it, and give trace_folder")
    if nodes > 1:
        raise ToolRejected(
            f"cluster.nodes ({nodes}) must be 1 for a run under the profiler; record traces in your job, and give trace_folder"
        )


def _check_budget(client: ServiceClient, study: Study, number: int, budget: float | None) -> None:
    """Reject a run under the profiler that the budget stated by the user does not cover.

    Raises:
        ToolRejected: no budget was given, an earlier run took more GPU-seconds than the budget, or no earlier run says
            how many it takes.
    """
    trials = list(client.trials(study.study_id))
    trial = next((trial for trial in trials if trial.number == number), None)
    if trial is None:
        raise ToolRejected(f"trial ({number}) is no trial of {study.study_id}; see studies_status")
    # A run under the profiler takes about as long as the trial's other runs; if none is known, as the study's longest.
    expected = max(_gpu_seconds([trial]) or _gpu_seconds(trials), default=None)
    text = "an unknown number of GPU-seconds" if expected is None else f"about {expected:,.0f} GPU-seconds"
    if budget is None:
        raise ToolRejected(
            f"max_gpu_seconds (missing): no diagnosis of trial {number} is stored, and one more run takes {text}; ask the "
            "user for the budget and add it"
        )
    if expected is None:
        raise ToolRejected(
            f"max_gpu_seconds ({budget:g}) cannot be compared with one more run of trial {number}, which takes {text}, "
            f"as no run of {study.study_id} is known to have used any; name a study that ran"
        )
    if budget < expected:
        raise ToolRejected(
            f"max_gpu_seconds ({budget:g}) does not cover one more run of trial {number}: {text}; ask the user"
        )


def _gpu_seconds(trials: Sequence[Trial]) -> list[float]:
    """Return the GPU-seconds of the attempts at all runs of some trials, as far as they used any."""
    runs = [run for trial in trials for run in trial.runs]
    return [attempt.gpu_seconds for run in runs for attempt in run.attempts if attempt.gpu_seconds]


def _answer(diagnosis: Diagnosis | None, run: TrialDiagnosis | None) -> DiagnoseAnswer:
    return DiagnoseAnswer(
        summary=" ".join(summary_sentences(diagnosis)) + _first_finding(diagnosis)
        if diagnosis is not None
        else _open_in_words(run),
        state="complete" if run is None else run.state.value,
        study_id=None if run is None else run.study_id,
        trial_number=None if run is None else run.trial_number,
        device=None if diagnosis is None else diagnosis.device,
        ranks=0 if diagnosis is None else len(diagnosis.ranks),
        step_time=None if diagnosis is None else figure(diagnosis.step_s, "s", "measured", _TRACE),
        parts={} if diagnosis is None else _parts(diagnosis),
        overlap=None
        if diagnosis is None or diagnosis.overlap is None
        else figure(diagnosis.overlap, "fraction of communication", "measured", _TRACE),
        late_rank=None if diagnosis is None or diagnosis.late_rank is None else diagnosis.late_rank.rank,
        findings=() if diagnosis is None else tuple(map(_finding, diagnosis.findings)),
        collectives=() if diagnosis is None else tuple(map(_collective, diagnosis.collectives[:_MOST_COLLECTIVES])),
        gpu_seconds=None if run is None else measured_rows.gpu_seconds(run.gpu_seconds, run.run_id),
        notes=() if diagnosis is None else diagnosis.notes,
    )


def _open_in_words(run: TrialDiagnosis | None) -> str:
    assert run is not None
    failure = "" if run.failure is None else f": {run.failure.message}"
    remedy = " Call again later." if run.state.is_open else ""
    return f"The run of trial {run.trial_number} under the profiler is {run.state.value}{failure}.{remedy}"


def _first_finding(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return " No known problem was found."
    first = diagnosis.findings[0]
    return f" Main finding: {FINDING_TITLES[first.kind]}: {first.evidence}; change: {first.remedy}."


def _parts(diagnosis: Diagnosis) -> dict[str, Figure]:
    step_s = diagnosis.parts.step_s or 1.0
    fractions = {name: getattr(diagnosis.parts, f"{name}_s") / step_s for name in PART_NAMES}
    largest_first = sorted(fractions.items(), key=lambda part: -part[1])
    return {name: figure(value, _OF_STEP, "measured", _TRACE) for name, value in largest_first if value > 0}


def _finding(finding: Finding) -> DiagnosedFinding:
    return DiagnosedFinding(
        kind=finding.kind,
        title=FINDING_TITLES[finding.kind],
        evidence=finding.evidence,
        remedy=finding.remedy,
        knobs=dict(finding.knobs),
        expected_gain=figure(finding.expected_gain, _OF_STEP, "predicted", "estimate from the traces"),
        tried=None if finding.remedy_result is None else remedy_in_words(finding.remedy_result),
    )


def _collective(collective: CollectiveFigures) -> DiagnosedCollective:
    return DiagnosedCollective(
        name=collective_in_words(collective),
        calls=collective.calls,
        exposed=figure(collective.exposed_s, "s per step", "measured", _TRACE),
        waiting=figure(collective.waiting_s, "s per step", "measured", _TRACE),
    )

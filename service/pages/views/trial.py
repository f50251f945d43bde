"""One trial: what ran, how it went step by step, and how to run it again."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measurements import Measurement, NodeFigures, RankFigures
from shardtune.api_schemas.trials.predictions import Prediction
from shardtune.api_schemas.trials.trial import RunPurpose, Trial, TrialState
from shardtune.db.queries import trials
from shardtune.db.tables.studies import StudyRow, TrialRow
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.charts.series import losses, step_times
from shardtune.service.pages.views import best, words
from shardtune.service.pages.views.conditions import circumstances, conditions_of, surroundings, troubles
from shardtune.service.planning import agreement, study_snapshot
from shardtune.service.studies import views as shown
from shardtune.service.wording import study_words
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import model_shape, predict
from shardtune.tuner.search.space.flat import flatten


@dataclass(frozen=True)
class TrialContext:
    """All of the page."""

    study: Study
    trial: Trial
    tone: str
    origin: str
    reason: str
    pruned: str
    """How far it came, where it was pruned."""
    knobs: dict[str, Any]
    config_json: str
    measured: Measurement | None
    """Of the search run."""
    plots: tuple[Plot, ...]
    reference: int | None
    memory: tuple[tuple[str, float], ...]
    """Kinds of measured memory, GiB."""
    limit_gib: float
    prediction: Prediction | None
    previous: int | None
    following: int | None
    command: str
    is_best: bool
    best_number: int | None
    advice: str
    """What a person can do about its failure."""
    nearest: tuple[int, str, float] | None
    """Of one that needs too much memory: number, words and peak in GiB of the largest that fits."""
    ends: dict[str, str]
    """How attempts end, in words."""
    ranks: tuple[RankFigures, ...]
    hosts: tuple[str | None, ...]
    """Of the ranks, where there were several hosts."""
    nodes: tuple[NodeFigures, ...]
    """Host by host, where there were several."""
    circumstances: tuple[tuple[str, str], ...]
    """Tone and sentence of each."""
    troubles: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Each later run whose machine was not as it should be, and in what."""
    log_tail: str | None


def trial_page(session: Session, row: StudyRow, number: int) -> TrialContext | None:
    """Everything about a trial; None where the study has none of this number."""
    found = {t.number: t for t in trials.of_study(session, row.id, with_attempts=True)}
    if number not in found:
        return None
    study = best.read_models(session, [row])[0]
    trial = shown.trial(found[number])
    run = next((run for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    measured = run.measurement if run else None
    reference = _reference(session, row)
    answer = best.answer(study)
    return TrialContext(
        study=study,
        trial=trial,
        tone=words.TRIAL_TONES[trial.state],
        origin=words.origins(study)[trial.origin],
        reason=words.FAILURES.get(trial.failure.kind.value, "") if trial.failure else "",
        pruned=study_words.pruned(trial),
        knobs=flatten(trial.config),
        config_json=trial.config.model_dump_json(indent=2),
        measured=measured,
        plots=_plots(measured, found, reference, number) if measured else (),
        reference=reference,
        memory=_memory(measured) if measured else (),
        limit_gib=available_gib(study.cluster, study.spec.objective),
        prediction=_prediction(study, trial),
        previous=number - 1 if number - 1 in found else None,
        following=number + 1 if number + 1 in found else None,
        command=_command(study, number),
        is_best=answer is not None and answer.trial_number == number,
        best_number=answer.trial_number if answer else None,
        advice=words.ADVICE.get(trial.failure.kind.value, "") if trial.failure else "",
        nearest=_nearest(trial, found),
        ends=words.ENDS,
        ranks=measured.ranks if measured else (),
        hosts=_hosts(measured) if measured and measured.nodes else (),
        nodes=measured.nodes if measured else (),
        circumstances=circumstances(measured) if measured else surroundings(conditions_of(None, trial.failure)),
        troubles=_later_troubles(trial),
        log_tail=next((run.log_tail for run in reversed(trial.runs) if run.log_tail), None),
    )


def _hosts(measured: Measurement) -> tuple[str | None, ...]:
    seen = measured.conditions
    return tuple(seen.host_of(one.rank) if seen else None for one in measured.ranks)


def _nearest(trial: Trial, found: dict[int, TrialRow]) -> tuple[int, str, float] | None:
    """The complete trial with the largest peak, where this one needs too much memory."""
    if trial.failure is None or trial.failure.kind not in (FailureKind.OOM, FailureKind.OVER_LIMIT):
        return None
    fitting = [shown.trial(row) for row in found.values() if row.state is TrialState.COMPLETE]
    sized = [(size, one) for one in fitting if (size := study_words.peak_memory(one)) is not None]
    size, largest = max(sized, key=lambda entry: entry[0], default=(0.0, None))
    return (largest.number, largest.description, size) if largest is not None else None


def _later_troubles(trial: Trial) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    later = [run for run in trial.runs if run.purpose != RunPurpose.SEARCH]
    found = [troubles(conditions_of(run.measurement, run.failure)) for run in later]
    return tuple((f"Validation run {number}", lines) for number, lines in enumerate(found, 1) if lines)


def _reference(session: Session, row: StudyRow) -> int | None:
    seen = study_snapshot.view(session, row)
    return agreement.final_parity_groups(seen.history, seen.rejected, seen.spec).parity_groups.reference


def _plots(measured: Measurement, found: dict[int, TrialRow], reference: int | None, number: int) -> tuple[Plot, ...]:
    other = () if reference is None or reference == number else _losses_of(found[reference])
    name = f"trial {reference}, the reference"
    window = max(1, round(measured.measured_steps / max(len(measured.window_step_times_s), 1)))
    plots = (
        losses(measured.losses, other, name, len(measured.trajectory)),
        step_times(measured.warmup_step_times_s, measured.window_step_times_s, window),
    )
    return tuple(plot for plot in plots if plot is not None)


def _losses_of(row: TrialRow) -> tuple[float, ...]:
    run = next((run for run in row.runs if run.purpose == RunPurpose.SEARCH), None)
    return run.measurement.losses if run and run.measurement else ()


def _memory(measured: Measurement) -> tuple[tuple[str, float], ...]:
    memory = measured.memory
    kinds = (
        ("tensors (allocated)", memory.peak_allocated_gib),
        ("held by the allocator (reserved)", memory.peak_reserved_gib),
        ("in use on the device", memory.device_used_gib),
    )
    return tuple((name, size) for name, size in kinds if size is not None)


def _prediction(study: Study, trial: Trial) -> Prediction | None:
    try:
        shape = model_shape.from_config(study.spec.model.config, study.spec.model.name)
        return predict.predict(shape, study.spec.workload, study.cluster, trial.config, limits=False)
    except ValueError:
        return None


def _command(study: Study, number: int) -> str:
    folder = f"trial-{number}"
    return (
        f"shardtune export {study.study_id} --which {number} --out {folder} && shardtune run-trial {folder}/config.json"
    )

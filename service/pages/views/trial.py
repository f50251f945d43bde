"""Values of a trial's page: configuration, measurement, step times, and the command to run it again."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measurements import Measurement, NodeFigures, RankFigures
from shardtune.api_schemas.trials.predictions import Prediction
from shardtune.api_schemas.trials.trial import Run, RunPurpose, Trial, TrialState
from shardtune.db.queries import trials
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import TrialRow
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.charts.series import losses, step_times
from shardtune.service.pages.views import best, words
from shardtune.service.pages.views.conditions import circumstances, conditions_of, surroundings, troubles
from shardtune.service.planning import agreement, study_snapshot
from shardtune.service.studies import from_rows
from shardtune.service.wording import study_words
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import predict, traced_shape
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.search import seeds
from shardtune.tuner.search.space.flat import flatten

_WARNING_TONES = ("warn", "bad")


@dataclass(frozen=True)
class ChangedKnob:
    """Knob (tuned parameter) of a trial whose value differs from the value in the backend's documented default
    configuration."""

    name: str
    value: Any
    default: Any
    """Value in the default configuration; None if that configuration has no such knob."""


@dataclass(frozen=True)
class TrialContext:
    """All values of the page."""

    study: Study
    trial: Trial
    tone: str
    origin: str
    reason: str
    pruned: str
    """Steps and speed of the trial, if it was pruned (ended early because it was slow); else empty."""
    default: str
    """Description of the documented default configuration that the trial's configuration is compared with."""
    changed: tuple[ChangedKnob, ...]
    """Knobs in which the trial's configuration differs from the documented default."""
    knobs: dict[str, Any]
    """All knobs by name."""
    config_json: str
    measured: Measurement | None
    """Measurement of the search run."""
    plots: tuple[Plot, ...]
    reference: int | None
    memory: tuple[tuple[str, float], ...]
    """Measured memory as pairs of a kind, such as `reserved`, and a size in GiB."""
    limit_gib: float
    prediction: Prediction | None
    previous: int | None
    following: int | None
    export_command: str
    run_command: str
    is_best: bool
    best_number: int | None
    advice: str
    """Advice on how to avoid the trial's failure; empty if the trial did not fail, or there is none."""
    nearest: tuple[int, str, float] | None
    """Number, description and peak in GiB of the fitting trial with the largest peak. It is shown beside a trial that
    ran out of memory; otherwise None."""
    ends: dict[str, str]
    """Display names of the ways in which an attempt of a run can end, by their stored names."""
    ranks: tuple[RankFigures, ...]
    hosts: tuple[str | None, ...]
    """Host of each rank, if the trial ran on several hosts."""
    nodes: tuple[NodeFigures, ...]
    """Figures of each host, if the trial ran on several hosts."""
    warnings: tuple[tuple[str, str], ...]
    """Tone (colour) and sentence of each condition of the search run that deserves a warning, such as a busy machine."""
    circumstances: tuple[tuple[str, str], ...]
    """Tone (colour) and sentence of each condition of the search run that needs no warning."""
    troubles: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Name and warnings (tone and sentence) of each run after the search run, without runs that need no warning."""
    log_tail: str | None
    has_failed: bool
    """Whether the trial gave no usable measurement; if so, the page shows its log unfolded."""


def trial_page(session: Session, row: StudyRow, number: int) -> TrialContext | None:
    """Return the values that a trial's page shows; None if the study has no such trial."""
    rows = {t.number: t for t in trials.of_study(session, row.id, with_attempts=True)}
    if number not in rows:
        return None
    study = best.read_models(session, [row])[0]
    trial = from_rows.trial_from_row(rows[number])
    run = next((run for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    measured = run.measurement if run else None
    reference = _reference(session, row)
    answer = best.answer(study)
    conditions = _conditions(trial, measured)
    default = _nearest_default(study, trial.config)
    return TrialContext(
        study=study,
        trial=trial,
        tone=words.TRIAL_TONES[trial.state],
        origin=words.origins(study)[trial.origin],
        reason=words.FAILURES.get(trial.failure.kind.value, "") if trial.failure else "",
        pruned=study_words.pruning_note(trial),
        default=default.describe(),
        changed=_changed(trial.config, default),
        knobs=flatten(trial.config),
        config_json=trial.config.model_dump_json(indent=2),
        measured=measured,
        plots=_plots(measured, rows, reference, number) if measured else (),
        reference=reference,
        memory=_memory(measured) if measured else (),
        limit_gib=available_gib(study.cluster, study.spec.objective),
        prediction=_prediction(study, trial),
        previous=number - 1 if number - 1 in rows else None,
        following=number + 1 if number + 1 in rows else None,
        export_command=f"shardtune export {study.study_id} --which {number} --out trial-{number}",
        run_command=f"shardtune run-trial trial-{number}/config.json",
        is_best=answer is not None and answer.trial_number == number,
        best_number=answer.trial_number if answer else None,
        advice=words.ADVICE.get(trial.failure.kind.value, "") if trial.failure else "",
        nearest=_nearest(trial, rows),
        ends=words.ENDS,
        ranks=measured.ranks if measured else (),
        hosts=_hosts(measured) if measured and measured.nodes else (),
        nodes=measured.nodes if measured else (),
        warnings=tuple(line for line in conditions if line[0] in _WARNING_TONES),
        circumstances=tuple(line for line in conditions if line[0] not in _WARNING_TONES),
        troubles=_later_troubles(trial),
        log_tail=next((run.log_tail for run in reversed(trial.runs) if run.log_tail), None),
        has_failed=trial.failure is not None,
    )


def _nearest_default(study: Study, config: TrialConfig) -> TrialConfig:
    """Return the documented default configuration, among those of a configuration's backend, that differs from it in
    the fewest knobs."""
    defaults = [default for default in seeds.documented_defaults(study.cluster) if default.backend == config.backend]
    return min(defaults, key=lambda default: len(_changed(config, default)))


def _changed(config: TrialConfig, default: TrialConfig) -> tuple[ChangedKnob, ...]:
    values, defaults = flatten(config), flatten(default)
    # repr: `False` and `0`, or `1` and `1.0`, are equal but not the same setting.
    return tuple(
        ChangedKnob(name, value, defaults.get(name))
        for name, value in values.items()
        if repr(value) != repr(defaults.get(name))
    )


def _conditions(trial: Trial, measured: Measurement | None) -> tuple[tuple[str, str], ...]:
    if measured is None:
        return surroundings(conditions_of(None, trial.failure))
    return (*_disturbance(measured), *circumstances(measured))


def _disturbance(measured: Measurement) -> tuple[tuple[str, str], ...]:
    if measured.disturbed is None:
        return ()
    return (("warn", f"the run counts although disturbed ({measured.disturbed}): the trial may be faster"),)


def _hosts(measured: Measurement) -> tuple[str | None, ...]:
    conditions = measured.conditions
    return tuple(conditions.host_of(rank.rank) if conditions else None for rank in measured.ranks)


def _nearest(trial: Trial, rows: dict[int, TrialRow]) -> tuple[int, str, float] | None:
    """Return number, description and peak of the complete trial with the largest peak, to be compared with a trial
    that needs too much memory."""
    # Only for lack of memory is "the next smaller one" an answer.
    if trial.failure is None or trial.failure.kind not in (FailureKind.OOM, FailureKind.OVER_LIMIT):
        return None
    fitting = [from_rows.trial_from_row(row) for row in rows.values() if row.state is TrialState.COMPLETE]
    sized = [(size, complete) for complete in fitting if (size := study_words.peak_memory(complete)) is not None]
    size, largest = max(sized, key=lambda entry: entry[0], default=(0.0, None))
    return (largest.number, largest.description, size) if largest is not None else None


def _later_troubles(trial: Trial) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    named, repeats = list[tuple[str, tuple[tuple[str, str], ...]]](), 0
    for run in trial.runs:
        repeats += run.purpose == RunPurpose.VALIDATION
        name = study_words.run_name(run.purpose).capitalize()
        name += f" {repeats}" if run.purpose == RunPurpose.VALIDATION else ""
        if run.purpose != RunPurpose.SEARCH and (lines := _troubles_of(run)):
            named.append((name, lines))
    return tuple(named)


def _troubles_of(run: Run) -> tuple[tuple[str, str], ...]:
    cause = run.measurement.disturbed if run.measurement is not None else None
    kept = () if cause is None else (("warn", f"kept although disturbed ({cause})"),)
    return (*kept, *troubles(conditions_of(run.measurement, run.failure)))


def _reference(session: Session, row: StudyRow) -> int | None:
    snapshot = study_snapshot.read_study(session, row)
    return agreement.final_parity_groups(snapshot.history, snapshot.rejected, snapshot.spec).parity_groups.reference


def _plots(measured: Measurement, rows: dict[int, TrialRow], reference: int | None, number: int) -> tuple[Plot, ...]:
    # The reference's own page needs no second line on top of the first.
    other = () if reference is None or reference == number else _losses_of(rows[reference])
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
        model, workload = study.spec.model, study.spec.workload
        shape = config_shape.from_config(model.config, model.name)
        shape = traced_shape.with_adapter(shape, model.model_type, workload.adapter)
        return predict.predict(shape, workload, study.cluster, trial.config, limits=False)
    except ValueError:
        # The user's own code, or an architecture without a closed form: the page goes without a prediction.
        return None

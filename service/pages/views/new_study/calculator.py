"""Values of the calculator: predicted memory and speed of the fastest configurations and of each strategy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.api_schemas.training.workload import AUTO, PRECISIONS, Precision
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest, PredictionTable, Verdict
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import ApiError, invalid_from_value_error
from shardtune.service.pages.charts.stacked_bars import KINDS, Stack, by_kind, stack
from shardtune.service.pages.views.new_study import form as forms
from shardtune.service.pages.views.new_study.form import Hardware, StudyForm
from shardtune.service.pages.views.new_study.form_fields import FormErrors
from shardtune.service.pages.views.new_study.layout_costs import LengthsView, lengths_view
from shardtune.service.planning.calibrations import Experience
from shardtune.service.studies.study_cost import StudyMachine, estimate_on
from shardtune.service.wording import cluster_words, cost_words
from shardtune.service.workers import study_clusters
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.search import fastest


@dataclass(frozen=True)
class ServiceKnowledge:
    """Functions and settings that the form needs for its predictions: access to models of the Hugging Face hub, and to
    workers' measurements."""

    read_model: Callable[[ModelSpec], ModelSpec]
    """Function that completes a model, which is named by its repository on the Hugging Face hub, with its
    `config.json`."""
    experience_of: Callable[[WorkerRow], Experience]
    """Function that returns the rates and calibrations that were measured on machines with a worker's hardware and
    software."""
    with_trace: Callable[[PredictionRequest], PredictionRequest]
    """Function that adds the trace of the user's own model to a request, if an earlier study recorded one."""
    measure: MeasurePlan
    """Numbers of warm-up steps and of timed windows (groups of steps timed together) in each run, from which the
    study's duration is estimated."""


_LAYOUTS = (
    ("padded", "as the samples come"),
    ("grouped", "sorted by length within a step"),
    ("packed", "several samples in one row, which is what a batch counts"),
)
_TONES: dict[Verdict, str] = {"fits": "good", "may fit": "warn", "does not fit": "bad"}


@dataclass(frozen=True)
class StrategyLine:
    """One strategy's prediction."""

    prediction: Prediction
    kinds: dict[str, float]
    tone: str


@dataclass(frozen=True)
class PrecisionLine:
    """Bytes that the training states (weights, gradients, optimizer states) take per model parameter in one
    precision."""

    name: str
    compute: int
    """Bytes per parameter of the copy of the weights for forward and backward; 0 if forward and backward use the
    master weights."""
    master: int
    gradients: int
    state: float
    """Bytes of optimizer states per parameter, as a mean over all parameters of the model."""
    total: float
    gib: float | None
    """Size of the training states of the whole model in GiB, without sharding; None if the form has no valid model."""


@dataclass(frozen=True)
class NewPage:
    """All values of the page."""

    form: StudyForm
    presets: tuple[str, ...]
    precisions: tuple[str, ...]
    optimizers: tuple[tuple[str, str], ...]
    layouts: tuple[tuple[str, str], ...]
    """Kind and description of each layout (arrangement of samples of several lengths in a batch), such as `packed`."""
    workers: tuple[Hardware, ...]
    catalogue: tuple[Hardware, ...]
    errors: tuple[FieldError, ...]
    table: PredictionTable | None
    cluster: str
    usable_gib: float
    """Memory in GiB that training may use on each rank: the rank's memory without the headroom that the study keeps
    free."""
    fastest: tuple[StrategyLine, ...]
    """Fastest configurations of the search space that are predicted to fit."""
    lines: tuple[StrategyLine, ...]
    stack: Stack | None
    """Bars of predicted memory: first for the fastest configurations, then for one configuration of each strategy."""
    kinds: tuple[str, ...]
    bytes_per_parameter: tuple[PrecisionLine, ...]
    can_create: bool
    quota: str
    """Text that says how many studies the project runs and how much GPU time it has used today; empty if the project
    has no quota."""
    cost: tuple[tuple[str, str], ...] = ()
    """Estimated cost and gain of the study, as rows of a name and a text; empty if the form has errors."""
    lengths: LengthsView | None = None
    """Lengths of the samples with their padding; None if all samples have one length, or the form has errors."""


def new_page(
    form: StudyForm,
    live: Sequence[WorkerRow],
    knowledge: ServiceKnowledge,
    errors: Sequence[FieldError] = (),
    quota: str = "",
) -> NewPage:
    """Return the page of the form with its predictions, or with the errors in its fields."""
    own, catalogue_choices = forms.hardware_of(live)
    if not form.hardware:
        form = _first_form(form, own, live)
    form = forms.with_catalogue_name(form)
    worker = forms.worker_of(form, live)
    experience = knowledge.experience_of(worker) if worker is not None else Experience()
    table, lengths, problems = _answer_form(form, live, knowledge, experience)
    usable = available_gib(table.cluster, forms.objective_of(form)) if table else 0.0
    shown = (*table.fastest, *table.predictions) if table else ()
    lines = tuple(StrategyLine(line, by_kind(line.memory.terms), _TONES[line.memory.verdict]) for line in shown)
    first = len(table.fastest) if table else 0
    return NewPage(
        form=form,
        presets=tuple(preset_names()),
        precisions=(AUTO, *PRECISIONS),
        layouts=_LAYOUTS,
        optimizers=tuple((kind, optimizer.title) for kind, optimizer in OPTIMIZERS.items()),
        workers=own,
        catalogue=catalogue_choices,
        errors=tuple(errors) or problems,
        table=table,
        cluster=cluster_words.cluster(table.cluster) if table else "",
        usable_gib=usable,
        fastest=lines[:first],
        lines=lines[first:],
        stack=stack(shown, usable) if table else None,
        kinds=tuple(KINDS),
        bytes_per_parameter=tuple(_precision(precision, form.optimizer, table) for precision in PRECISIONS.values()),
        can_create=form.hardware.startswith("worker:"),
        quota=quota,
        cost=_cost(form, live, knowledge, experience) if table else (),
        lengths=lengths,
    )


def _first_form(form: StudyForm, own: Sequence[Hardware], live: Sequence[WorkerRow]) -> StudyForm:
    """Return the form with initial values: a live worker and a study that it can finish soon. Without a live worker,
    the hardware is eight H100 GPUs."""
    if not own:
        return form.model_copy(update={"hardware": catalogue.find("H100-SXM-80GB").name})
    update = {"hardware": own[0].value}
    # The form's default model has 8 billion parameters: on CPU ranks the first form must be one that finishes soon.
    if live[0].offer.cluster.device == "cpu":
        update |= {"model": "llama-tiny", "sequence_length": "64", "global_batch": "16"}
    return form.model_copy(update=update)


def _cost(
    form: StudyForm, live: Sequence[WorkerRow], knowledge: ServiceKnowledge, experience: Experience
) -> tuple[tuple[str, str], ...]:
    """Return the estimated cost of the form's study as rows; empty if the service would reject the study."""
    try:
        request, cluster = forms.study_request(form, live), forms.cluster_of(form, live)
        device = next(iter(study_clusters.dtypes_of(cluster, live)))
        rates = experience.hardware or forms.measured_rates(form, live)
        machine = StudyMachine(cluster, device, rates, experience.calibrations)
        request = request.model_copy(update={"model": knowledge.read_model(request.model)})
        cost = estimate_on(request, machine, knowledge.measure, knowledge.with_trace)
    # The errors stand beside their fields once the study is sent; the prediction needs fewer of them.
    except (FormErrors, ApiError, ValueError):
        return ()
    return tuple(cost_words.cost_rows(cost, on_cpu=cluster.device == "cpu"))


class _FormAnswer(NamedTuple):
    """Result of the form's calculator: predictions for the form's values, or the errors in its fields."""

    table: PredictionTable | None = None
    lengths: LengthsView | None = None
    problems: tuple[FieldError, ...] = ()


def _answer_form(
    form: StudyForm, live: Sequence[WorkerRow], knowledge: ServiceKnowledge, experience: Experience
) -> _FormAnswer:
    try:
        request, cluster = forms.prediction_request(form, live), forms.cluster_of(form, live)
        rates = experience.hardware or request.hardware
        request = request.model_copy(update={"model": knowledge.read_model(request.model), "hardware": rates})
        request = knowledge.with_trace(request)
        device = next(iter(study_clusters.dtypes_of(cluster, live)))
        table = fastest.answer_request(request, experience.calibrations, device, forms.objective_of(form))
        return _FormAnswer(table, lengths_view(request, cluster.world_size))
    except FormErrors as error:
        return _FormAnswer(problems=error.errors)
    except ApiError as error:
        return _FormAnswer(problems=tuple(error.errors))
    except ValueError as error:
        problems = invalid_from_value_error("", error).errors
        return _FormAnswer(
            problems=tuple(item if item.field else item.model_copy(update={"field": "model"}) for item in problems)
        )


def _precision(precision: Precision, kind: str, table: PredictionTable | None) -> PrecisionLine:
    master, compute = DTYPE_BYTES[precision.master_dtype], DTYPE_BYTES[precision.compute_dtype]
    copy = compute if compute < master else 0
    gradients, parameters = DTYPE_BYTES[precision.reduce_dtype], table.parameters if table else None
    # Without a model, every parameter counts as one that is in no matrix of a block.
    optimizer = OPTIMIZERS.get(kind, OPTIMIZERS[DEFAULT_OPTIMIZER])
    state = optimizer.state_bytes(1.0, 0.0, master)
    if table is not None and table.parameters:
        state = optimizer.state_bytes(table.parameters, table.matrix_parameters, master) / table.parameters
    total = copy + master + gradients + state
    whole = None
    if table is not None and parameters:
        # Frozen weights are kept in the dtype of the computation, without anything else.
        trained = parameters if table.trained_parameters is None else table.trained_parameters
        whole = (total * trained + DTYPE_BYTES[precision.weights_dtype] * (parameters - trained)) / 2**30
    return PrecisionLine(precision.name, copy, master, gradients, state, total, whole)

"""What fits, before anything runs: predictions for one of each strategy, stacked, and the bytes behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.training.models import preset_names
from shardtune.api_schemas.training.workload import AUTO, PRECISIONS, Precision
from shardtune.api_schemas.trials.predictions import Prediction, PredictionTable, Verdict
from shardtune.db.tables.studies import WorkerRow
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import ApiError, from_value_error
from shardtune.service.pages.charts.stacked_bars import KINDS, Stack, by_kind, stack
from shardtune.service.pages.views.new_study import form as forms
from shardtune.service.pages.views.new_study.form import Hardware, StudyForm
from shardtune.service.pages.views.new_study.form_fields import FormErrors
from shardtune.service.wording import cluster_words
from shardtune.service.workers import compatibility
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.search import fastest

_TONES: dict[Verdict, str] = {"fits": "good", "may fit": "warn", "does not fit": "bad"}


@dataclass(frozen=True)
class StrategyLine:
    """One strategy's prediction."""

    prediction: Prediction
    kinds: dict[str, float]
    tone: str


@dataclass(frozen=True)
class PrecisionLine:
    """Bytes per parameter of one precision of dtypes."""

    name: str
    compute: int
    """Weights in forward and backward, where they are not the masters themselves."""
    master: int
    gradients: int
    moments: int
    total: int
    gib: float | None
    """For the model in question, unsharded."""


@dataclass(frozen=True)
class NewPage:
    """All of the page."""

    form: StudyForm
    presets: tuple[str, ...]
    precisions: tuple[str, ...]
    workers: tuple[Hardware, ...]
    catalogue: tuple[Hardware, ...]
    errors: tuple[FieldError, ...]
    table: PredictionTable | None
    cluster: str
    usable_gib: float
    """Memory of a rank less what the study is to keep free."""
    fastest: tuple[StrategyLine, ...]
    """Of the whole space, as far as they should fit."""
    lines: tuple[StrategyLine, ...]
    stack: Stack | None
    """Bars of the fastest, then of the lines."""
    kinds: tuple[str, ...]
    bytes_per_parameter: tuple[PrecisionLine, ...]
    can_create: bool
    quota: str
    """What the project has used of it; empty: it has none."""


def new_page(form: StudyForm, live: Sequence[WorkerRow], errors: Sequence[FieldError] = (), quota: str = "") -> NewPage:
    """The form with what it predicts, or with what is wrong in it."""
    own, known = forms.hardware_of(live)
    if not form.hardware:
        form = _starting(form, own, live)
    table, found = _table(form, live)
    usable = available_gib(table.cluster, forms.objective_of(form)) if table else 0.0
    shown = (*table.fastest, *table.predictions) if table else ()
    lines = tuple(StrategyLine(one, by_kind(one.memory.terms), _TONES[one.memory.verdict]) for one in shown)
    first = len(table.fastest) if table else 0
    return NewPage(
        form=form,
        presets=tuple(preset_names()),
        precisions=(AUTO, *PRECISIONS),
        workers=own,
        catalogue=known,
        errors=tuple(errors) or found,
        table=table,
        cluster=cluster_words.cluster(table.cluster) if table else "",
        usable_gib=usable,
        fastest=lines[:first],
        lines=lines[first:],
        stack=stack(shown, usable) if table else None,
        kinds=tuple(KINDS),
        bytes_per_parameter=tuple(
            _precision(precision, table.parameters if table else None) for precision in PRECISIONS.values()
        ),
        can_create=form.hardware.startswith("worker:"),
        quota=quota,
    )


def _starting(form: StudyForm, own: Sequence[Hardware], live: Sequence[WorkerRow]) -> StudyForm:
    """A form to begin with: what a worker here has and can finish soon, else eight H100."""
    if not own:
        return form.model_copy(update={"hardware": catalogue.find("H100-SXM-80GB").name})
    update = {"hardware": own[0].value}
    if live[0].offer.cluster.device == "cpu":
        update |= {"model": "llama-tiny", "sequence_length": "64", "global_batch": "16"}
    return form.model_copy(update=update)


def _table(form: StudyForm, live: Sequence[WorkerRow]) -> tuple[PredictionTable | None, tuple[FieldError, ...]]:
    try:
        request, cluster = forms.prediction_request(form, live), forms.cluster_of(form, live)
        device = next(iter(compatibility.dtypes_of(cluster, live)))
        return fastest.table(request, device=device, objective=forms.objective_of(form)), ()
    except FormErrors as error:
        return None, error.errors
    except ApiError as error:
        return None, tuple(error.errors)
    except ValueError as error:
        found = from_value_error("", error).errors
        return None, tuple(one if one.field else one.model_copy(update={"field": "model"}) for one in found)


def _precision(precision: Precision, parameters: int | None) -> PrecisionLine:
    master, compute = DTYPE_BYTES[precision.master_dtype], DTYPE_BYTES[precision.compute_dtype]
    copy = compute if compute < master else 0
    gradients, moments = DTYPE_BYTES[precision.reduce_dtype], 2 * master
    total = copy + master + gradients + moments
    return PrecisionLine(
        precision.name, copy, master, gradients, moments, total, total * parameters / 2**30 if parameters else None
    )

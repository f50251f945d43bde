"""Form of a plan: its fields as text, and their conversion to the request of `POST /v1/plans`."""

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardtune.api_schemas.training.workload import AUTO
from shardtune.api_schemas.trials.plans import Goodput, PlanRequest
from shardtune.service.http.errors import invalid_from_value_error
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages.views.new_study.form import StudyForm, model_of
from shardtune.service.pages.views.new_study.form_fields import FormErrors, error, number, positive_int
from shardtune.tuner.plans import written_lists
from shardtune.tuner.prediction import catalogue

_LONGEST = 400_000
"""Maximum number of characters of a file that a user pastes into the form."""
Value = TypeVar("Value")


class PlanForm(BaseModel):
    """Fields of the plans form, kept as text so that the page can show wrong input beside its error."""

    model_config = ConfigDict(extra="ignore")

    model: str = "llama-3.1-8b"
    """Name of a preset; `hub` if the field `hub` names a repository, or `custom` if the field `config` holds the
    model."""
    hub: str = Field(default="", max_length=200)
    config: str = Field(default="", max_length=_LONGEST)
    tokens: str = "300e9"
    gpus: str = Field(default="h100, h200", max_length=1000)
    """Kinds of GPUs by their names in the catalogue, separated by commas."""
    counts: str = Field(default="64..512", max_length=1000)
    gpus_per_node: str = "8"
    network: str = ""
    """Name of a network between nodes; empty for the usual one of each kind."""
    nodes_per_leaf: str = ""
    oversubscription: str = ""
    prices: str = Field(default="", max_length=1000)
    currency: str = ""
    """Currency of the prices and the budget; empty if the user does not state it."""
    budget: str = ""
    start: str = ""
    deadline: str = ""
    sequence_length: str = ""
    global_batch: str = ""
    precision: str = AUTO
    overhead: str = f"{Goodput().overhead:g}"
    failures: str = f"{Goodput().failures_per_gpu_hour:g}"
    study: str = Field(default="", max_length=100)
    """Id of a stored study of the model; empty for none."""


def plan_request(form: PlanForm) -> PlanRequest:
    """Convert the form to a request.

    Raises:
        FormErrors: some fields cannot be used.
    """
    model = model_of(StudyForm(model=form.model, hub=form.hub, config=form.config))
    gpus = tuple(name.strip() for name in form.gpus.split(",") if name.strip())
    values: dict[str, Any] = {
        "model": model,
        "tokens": number("tokens", form.tokens),
        "gpus": gpus,
        "counts": _list("counts", lambda: written_lists.read_counts(form.counts)),
        "gpus_per_node": positive_int("gpus_per_node", form.gpus_per_node),
        "network": form.network or None,
        "nodes_per_leaf": _count("nodes_per_leaf", form.nodes_per_leaf),
        "oversubscription": number("oversubscription", form.oversubscription)
        if form.oversubscription.strip()
        else None,
        "prices": _prices(form, gpus),
        "currency": form.currency.strip() or None,
        "budget": number("budget", form.budget) if form.budget.strip() else None,
        "start": _day("start", form.start),
        "deadline": _day("deadline", form.deadline),
        "sequence_length": _count("sequence_length", form.sequence_length),
        "global_batch": _count("global_batch", form.global_batch),
        "precision": form.precision,
        "study": form.study.strip() or None,
        "goodput": {
            "overhead": number("overhead", form.overhead),
            "failures_per_gpu_hour": number("failures", form.failures),
        },
    }
    try:
        return PlanRequest.model_validate(values)
    except ValidationError as problem:
        raise FormErrors([field_error(item) for item in problem.errors()]) from None


def _prices(form: PlanForm, gpus: Sequence[str]) -> dict[str, float]:
    """Read the prices, each by the name by which the plan asks for its kind, such as `H100-SXM5-80GB` for `h100`. A second
    price of a kind keeps its own name, which the request rejects."""
    stated = _list("prices", lambda: written_lists.read_prices(form.prices))
    prices = dict[str, float]()
    for name, price in stated.items():
        product = catalogue.product(name)
        same = [kind for kind in gpus if product is not None and catalogue.product(kind) == product]
        is_new = len(same) == 1 and same[0] not in stated and same[0] not in prices
        prices[same[0] if is_new else name] = price
    return prices


def _list(field: str, read: Callable[[], Value]) -> Value:
    try:
        return read()
    except ValueError as problem:
        raise FormErrors(invalid_from_value_error(field, problem).errors) from None


def _count(field: str, text: str) -> int | None:
    return positive_int(field, text) if text.strip() else None


def _day(field: str, text: str) -> date | None:
    if not text.strip():
        return None
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise error(field, text, f"{field} ({text[:40]!r}) must be a day such as 2027-03-01") from None

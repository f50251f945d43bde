"""Values of the page of plans: the form, the choices, a table of all rows, and the charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from shardtune.api_schemas.machines.networks import NETWORKS
from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.api_schemas.training.workload import AUTO, PRECISIONS
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import ApiError
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.views.new_study.form_fields import FormErrors
from shardtune.service.pages.views.plans.chart import plan_has_prices, plots
from shardtune.service.pages.views.plans.form import PlanForm, plan_request
from shardtune.service.wording import plan_words
from shardtune.tuner.prediction import catalogue

MakePlan = Callable[[PlanRequest], Plan]
"""Function that computes a plan, and raises the same errors as the REST API's operation for plans."""
_CHANCE_TONES = {"surely": "good", "likely": "good", "unlikely": "warn", "no": "bad"}


@dataclass(frozen=True)
class PlanLine:
    """Row of a plan, which describes training on one kind and number of GPUs."""

    row: PlanRow
    badges: tuple[str, ...]
    """Choices that name this row."""
    days: tuple[str, str]
    """Expected days of the training run, and their 90 % band, as two texts."""
    cost: tuple[str, str]
    """Expected cost (GPU-hours if some row has no price), and its 90 % band, as two texts."""
    finish: tuple[str, str]
    source: tuple[str, str]
    """Source of the row's speed, as a tone (which decides the colour; empty for none) and words."""
    in_time: tuple[str, str] | None
    """Chance to meet the deadline, as a tone (which decides the colour) and a word; None without a deadline."""
    in_budget: tuple[str, str] | None


@dataclass(frozen=True)
class PlansPage:
    """All values of the page."""

    form: PlanForm
    presets: tuple[str, ...]
    precisions: tuple[str, ...]
    networks: tuple[str, ...]
    """Names of networks between nodes."""
    kinds: tuple[str, ...]
    """Names of the GPUs whose rates and memory the catalogue knows."""
    errors: tuple[FieldError, ...]
    plan: Plan | None
    choices: tuple[tuple[str, str], ...]
    """Value and label of each option that the form offers."""
    lines: tuple[PlanLine, ...]
    plots: tuple[Plot, ...]
    evidence: str
    """Sentence that says which rows were measured, and by whom; empty without a plan."""
    cost_heading: str
    """Heading of the column of costs, which holds GPU-hours if the plan has no prices."""
    address: str
    """URL that shows the plan again, from the midnight of its first day. Empty if there is no plan, or the model was
    pasted, which a URL cannot hold."""


def plans_page(form: PlanForm, make_plan: MakePlan | None) -> PlansPage:
    """Return the values that the page for plans shows. If `make_plan` is None, the page has the form without a plan."""
    plan, errors = (None, ()) if make_plan is None else _plan(form, make_plan)
    chosen = [row for _, row, _ in plan_words.choices(plan) if row is not None] if plan is not None else []
    return PlansPage(
        form=form,
        presets=tuple(preset_names()),
        precisions=(AUTO, *PRECISIONS),
        networks=tuple(NETWORKS),
        kinds=tuple(name for name in catalogue.names() if catalogue.find(name).memory_gib),
        errors=errors,
        plan=plan,
        choices=_choices(plan) if plan is not None else (),
        lines=tuple(_line(plan, row) for row in plan.rows) if plan is not None else (),
        plots=plots(plan, chosen) if plan is not None else (),
        evidence=plan_words.evidence(plan) if plan is not None else "",
        cost_heading=_cost_heading(plan),
        address=_address(form, plan) if plan is not None else "",
    )


def _address(form: PlanForm, plan: Plan) -> str:
    if form.model == "custom":
        return ""
    # Without its first day, the plan would begin anew whenever someone opens the address.
    stated = {"tokens": form.tokens, "start": f"{plan.start}"}
    return "/plans?" + urlencode(form.model_dump(exclude={"config"}, exclude_defaults=True) | stated)


def _plan(form: PlanForm, make_plan: MakePlan) -> tuple[Plan | None, tuple[FieldError, ...]]:
    try:
        return make_plan(plan_request(form)), ()
    except FormErrors as problem:
        return None, problem.errors
    except ApiError as problem:
        return None, tuple(problem.errors) or (FieldError(field="", message=problem.detail),)


def _line(plan: Plan, row: PlanRow) -> PlanLine:
    return PlanLine(
        row=row,
        badges=_badges(plan, row),
        days=plan_words.value_and_band(plan_words.day_band(row.hours), "{:,.1f}".format),
        cost=_cost(row, has_cost=plan_has_prices(plan)),
        source=(_source_tone(row), plan_words.source(row)),
        finish=(f"{row.finish.expected}", f"{row.finish.earliest} to {row.finish.latest}"),
        in_time=_chance(row.meets_deadline),
        in_budget=_chance(row.within_budget),
    )


def _source_tone(row: PlanRow) -> str:
    if row.evidence != "measured":
        return ""
    return "warn" if row.verdict not in (None, "confirmed") else "good"


def _choices(plan: Plan) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_capitalized(name), otherwise if row is None else plan_words.summary(plan, row))
        for name, row, otherwise in plan_words.choices(plan)
    )


def _cost_heading(plan: Plan | None) -> str:
    return "GPU-hours" if plan is None or not plan_has_prices(plan) else _capitalized(plan_words.cost_heading(plan))


def _capitalized(words: str) -> str:
    return words[:1].upper() + words[1:]


def _cost(row: PlanRow, *, has_cost: bool) -> tuple[str, str]:
    if not has_cost:
        return plan_words.value_and_band(row.gpu_hours)
    return ("no price", "") if row.cost is None else plan_words.value_and_band(row.cost)


def _badges(plan: Plan, row: PlanRow) -> tuple[str, ...]:
    named: Sequence[tuple[str, Sequence[PlanRow | None]]] = (
        ("cheapest in time" if plan.deadline is not None else "cheapest", (plan.cheapest_in_time,)),
        ("fastest within the money", (plan.fastest_in_budget,)),
        ("knee", plan.knees),
    )
    return tuple(name for name, rows in named if row in rows)


def _chance(word: str | None) -> tuple[str, str] | None:
    return None if word is None else (_CHANCE_TONES[word], word)

"""Plan in this process, for the command line and for `shardtune.plan`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule

if TYPE_CHECKING:
    from shardtune.api_schemas.studies.study import Study
    from shardtune.tuner.plans import plan as planning
else:
    planning = LazyModule("shardtune.tuner.plans.plan")

_WORKLOAD = ("model", "sequence_length", "global_batch", "precision")


def make_plan(values: dict[str, Any], study: Study | None = None) -> Plan:
    """Plan the training run that the options describe, with a stored study if they name one.

    Raises:
        InputError: an option's value cannot be used; each line names it.
    """
    try:
        request = PlanRequest.model_validate(values | ({} if study is None else {"study": study.study_id}))
        return planning.plan(request, datetime.now(UTC), study=study)
    except ValidationError as error:
        raise InputError(*(_line(dict(entry)) for entry in error.errors())) from None
    except ArithmeticError:
        raise InputError(
            "tokens, prices or dimensions are too large or too small to compute with; correct them"
        ) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def plannable_values(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan's request that the command's model argument, such as a study file, states.

    Raises:
        InputError: the argument is a study file whose training a plan does not describe; the message names field and
        remedy.
    """
    optimizer, space = study.get("optimizer"), study.get("space")
    if optimizer is not None and optimizer.kind != DEFAULT_OPTIMIZER:
        raise InputError(
            f"workload.optimizer ({optimizer.kind}) is not planned: plans are of {DEFAULT_OPTIMIZER}; name the model alone, "
            "or predict single sizes with `shardtune predict FILE`"
        )
    if study.get("adapter") is not None:
        raise InputError(
            f"workload.adapter ({study['adapter'].describe()}) is not planned: plans are of trainings of all weights; name the "
            "model alone, or predict single sizes with `shardtune predict FILE`"
        )
    if study.get("data") is not None:
        raise InputError(
            f"workload.data ({study['data'].describe()}) is not planned: plans count tokens of samples of one length; name the "
            "model alone, or predict single sizes with `shardtune predict FILE`"
        )
    if space is not None and space != SpaceLimits():
        raise InputError(
            "space (given) is not read by plans, which choose among all layouts; name the model alone, or predict single "
            "sizes with `shardtune predict FILE`"
        )
    return {name: value for name, value in study.items() if name in _WORKLOAD}


def _line(entry: dict[str, Any]) -> str:
    message, place = rephrase_error(entry["msg"]), ".".join(map(str, entry["loc"]))
    if not place or entry["type"] == "value_error":
        return str(message)
    value = entry["input"] if isinstance(entry["input"], str | int | float) else "missing"
    return f"{place} ({value}): {message}"


def read_day(day: date | str | None, name: str) -> date | None:
    """Parse a text as a day; `name` is the option or argument that holds the text, for error messages.

    Raises:
        InputError: the text is no day.
    """
    if not isinstance(day, str):
        return day
    try:
        return date.fromisoformat(day)
    except ValueError:
        raise InputError(f"{name} ({day[:40]!r}) must be a day such as 2027-03-01") from None

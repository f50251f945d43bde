"""Functions that the tools of `shardtune mcp` call: those of the commands on this machine, and those of a service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.cli import missing_extras
from shardtune.service.cli.errors import CliError
from shardtune.service.cli.models import source as model_source
from shardtune.service.cli.predict import model_trace
from shardtune.service.cli.predict.measured_hardware import hardware_report
from shardtune.service.client import ServiceClient
from shardtune.service.mcp.errors import ToolRejected
from shardtune.service.mcp.product import Product, product_of_service
from shardtune.traces import folder as traces
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.plans.plan import plan
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.search import fastest

Request = TypeVar("Request", PredictionRequest, PlanRequest)
_LONGEST_PATH = 500
"""Maximum number of characters of a path in an error."""


def local_product(state_dir: Path, client: ServiceClient | None) -> Product:
    """Return the functions that the MCP tools call. They ask the service if one is given; otherwise they compute on
    this machine.

    A service is preferred, because its workers' measurements calibrate its predictions; this machine has no such
    measurements.
    """
    if client is not None:
        return product_of_service(client, _diagnose_folder)
    return Product(_predictor(state_dir), _plan, _diagnose_folder)


@contextmanager
def _cli_errors() -> Iterator[None]:
    """Turn an expected error of a command into a `ToolRejected`, which the agent reads."""
    try:
        yield
    except CliError as error:
        # Their options have the names of the tools' arguments.
        raise ToolRejected(*(line.removeprefix("--") for line in error.lines)) from None
    except ModuleNotFoundError as error:
        line = missing_extras.remedy(error)
        if line is None:
            raise
        raise ToolRejected(line) from None


def _predictor(state_dir: Path) -> Callable[[PredictionRequest], PredictionTable]:
    def predict(request: PredictionRequest) -> PredictionTable:
        request = _with_config(request)
        if request.cluster == "local" and request.hardware is None:
            with _cli_errors():
                report = hardware_report("local", None, state_dir)
            assert report is not None
            request = request.model_copy(update={"cluster": report.cluster, "hardware": report.measured})
        try:
            return fastest.answer_request(request)
        except config_shape.NoClosedForm:
            # The user's own code is counted by a worker that allows it, never here.
            if request.model.is_own:
                raise
        with _cli_errors():
            summary = model_trace.count_model(request.model, request.sequence_length)
        return fastest.answer_request(request.model_copy(update={"model_summary": summary}))

    return predict


def _plan(request: PlanRequest) -> Plan:
    return plan(_with_config(request), datetime.now(UTC))


def _diagnose_folder(folder: Path) -> Diagnosis:
    try:
        return explain.explain(traces.diagnose_folder(folder), None, None)
    except UnreadableTrace as error:
        # Shortened: a line of an error is cut at its end, where the reason is.
        raise ToolRejected(f"trace_folder ({str(folder)[:_LONGEST_PATH]}): {error}") from None


def _with_config(request: Request) -> Request:
    """Return the request with its model's `config.json`, read from the Hugging Face hub if the request only names
    the repository."""
    if not request.model.is_unread:
        return request
    with _cli_errors():
        named = model_source.named_model(str(request.model.hub))
    return request.model_copy(update={"model": ModelSpec.model_validate(named)})

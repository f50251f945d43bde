"""Count a model's parameters and FLOPs in a child process on this machine; the command line itself never loads torch."""

import importlib.util
import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.predict import bounded_process
from shardtune.service.cli.processes import MODULE

_LIMIT_S = 600


def count_model(model: ModelSpec, sequence_length: int | None) -> ModelSummary:
    """Count the parameters and FLOPs of a model that transformers builds without allocating its weights.

    Raises:
        InputError: torch is not installed here, or the model cannot be built.
        PlatformFailure: counting failed or took more than ten minutes.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"model_type ({model.model_type!r}) has to be built to be counted, and torch is not installed here; install "
            "`shardtune[worker]`, or run this where a worker runs"
        )
    return _count(model, [str(sequence_length)] if sequence_length else [])


def trace_own_code(model: ModelSpec, workload: Workload) -> ModelSummary:
    """Build a model from the user's own code without allocating its weights, and trace one training step.

    Raises:
        InputError: torch or the package is not installed here, or the model cannot be built.
        PlatformFailure: tracing failed or took more than ten minutes.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            f"entry_point ({model.entry_point!r}) has to be built to be traced, and torch is not installed here; install "
            "`shardtune[worker]`, or run this where a worker runs"
        )
    return _count(model, [workload.model_dump_json()])


def _count(model: ModelSpec, arguments: list[str]) -> ModelSummary:
    sys.stderr.write(f"counting parameters and FLOPs of {model.name} on the built model (some seconds, no weights)\n")
    command = [*MODULE, "shardtune.workers.rank.count_model", *arguments]
    model_json = model.model_dump_json()
    try:
        code, output, errors = bounded_process.run(command, model_json, _LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PlatformFailure(f"counting {model.name} took more than {_LIMIT_S} s") from None
    # The last line alone: torch and transformers may print warnings before it.
    if code == 2:
        raise InputError(*errors.strip().splitlines()[-1:])
    try:
        return ModelSummary.model_validate_json(output.strip().rpartition("\n")[2])
    except ValidationError:
        ended = f"counting {model.name} ended with exit code {code} and without an answer"
        cause = errors.splitlines()[-5:] or ["the code that builds the model may have ended the process"]
        raise PlatformFailure(f"{ended}:", *cause) from None

"""Count a model's parameters and FLOPs in a child process on this machine; the command line itself never loads torch."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryFile

from pydantic import ValidationError

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.parent_death import dies_with_parent
from shardtune.service.cli.processes import MODULE

_LIMIT_S = 600


def count_model(model: ModelSpec, sequence_length: int | None) -> ModelSummary:
    """Count parameters and FLOPs on the model as transformers builds it, without memory for weights.

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
    """Build the model of the user's own code and trace one step, without memory for weights.

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
        code, output, errors = _run(command, model_json)
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


def _run(command: Sequence[str], question: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, whose process ends with this one and takes all that it started along.

    Raises:
        TimeoutExpired: it took longer than the limit.
    """
    # Files, not pipes: a process that the user's code left behind would hold a pipe open for ever.
    with TemporaryFile("w+") as asked, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        asked.write(question)
        asked.seek(0)
        process = subprocess.Popen(
            dies_with_parent(command), stdin=asked, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(timeout=_LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()

"""Have a model built and counted on this machine, by a process of its own: the command line itself never loads torch."""

import importlib.util
import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.processes import MODULE

_LIMIT_S = 600


def profile_of(model: ModelSpec, sequence_length: int | None) -> ModelSummary:
    """Parameters and FLOPs, counted on the model as transformers builds it, without memory for weights.

    Raises:
        InputError: torch is not installed here, or the model cannot be built.
        PlatformFailure: counting did not come to an end.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"model_type ({model.model_type!r}) has to be built to be counted, and torch is not installed here; install "
            "`shardtune[worker]`, or run this where a worker runs"
        )
    sys.stderr.write(f"counting parameters and FLOPs of {model.name} on the built model (some seconds, no weights)\n")
    command = [*MODULE, "shardtune.workers.rank.count_model", *([str(sequence_length)] if sequence_length else [])]
    asked = model.model_dump_json()
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PlatformFailure(f"counting {model.name} took more than {_LIMIT_S} s") from None
    if done.returncode == 2:
        raise InputError(*done.stderr.strip().splitlines()[-1:])
    try:
        return ModelSummary.model_validate_json(done.stdout.strip().rpartition("\n")[2])
    except ValidationError:
        raise PlatformFailure(
            f"counting {model.name} ended with exit code {done.returncode}:", *done.stderr.splitlines()[-5:]
        ) from None

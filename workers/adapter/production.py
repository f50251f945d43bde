"""A script of the user's own outside of any trial: the best configuration that is known, or the script's own default."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.recommendations.best import BestConfig
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import Backend
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.adapter.trial import AdapterError, ScriptTrial
from shardtune.workers.blocks.prepare import prepare_blocks

SERVICE, CASE = "SHARDTUNE_SERVICE_URL", "SHARDTUNE_TARGET_KEY"
_PATIENCE_S = 10.0
"""A training must not hang on the service: it has the file, or its defaults."""


@dataclass(frozen=True)
class Known:
    """A configuration, what it was measured for, and who says so."""

    source: str
    config: TrialConfig
    workload: Workload
    options: Mapping[str, object]


class Unusable(Exception):
    """Why one source has nothing for this job."""


class TrainingRecorder:
    """Takes what the script says and measures nothing."""

    def __init__(self, config: TrialConfig) -> None:
        self._config = config
        self._is_checked = False

    def takes(self, backends: tuple[Backend, ...]) -> TrialConfig:
        """See `ScriptTrial.takes`; what is served is of one of them."""
        return self._config

    def prepare(self, model: nn.Module) -> None:
        """See `ScriptTrial.prepare`."""
        prepare_blocks(model, self._config)

    def report(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        """Look once whether all ranks train with the same: each of them has asked for itself."""
        if self._is_checked or not dist.is_initialized():
            return
        self._is_checked = True
        keys: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(keys, self._config.content_key())
        if len(set(keys)) > 1:
            raise AdapterError(
                f"the ranks were given different configurations ({', '.join(map(str, keys))}): what is served has changed in "
                "between, or a host has another file; start again"
            )


def configuration(
    backends: tuple[Backend, ...],
    default: TrialConfig | None,
    workload: Workload | None,
    file: Path,
    environment: Mapping[str, str] = os.environ,
) -> ScriptTrial:
    """See `adapter.configuration`.

    Raises:
        AdapterError: nothing is known that this job can run.
    """
    world = int(environment.get("WORLD_SIZE", "1"))
    reasons = []
    for source in _sources(default, workload, file, environment):
        try:
            known = source()
            accumulation = _check(known, backends, world)
        except Unusable as reason:
            reasons.append(str(reason))
            continue
        if int(environment.get("RANK", "0")) == 0:
            why = "".join(f"; {reason}" for reason in reasons)
            sys.stderr.write(f"shardtune: training with {known.config.describe()} ({known.source}{why})\n")
        made = ScriptTrial(
            TrainingRecorder(known.config),
            known.config,
            known.workload,
            accumulation,
            dict(known.options),
            _device(environment),
        )
        made.source = known.source
        return made
    raise AdapterError(
        "adapter.configuration() has nothing to train with: "
        + "; ".join(reasons)
        + "; give it default=… and workload=…, or run `shardtune tune` first"
    )


def _sources(
    default: TrialConfig | None, workload: Workload | None, file: Path, environment: Mapping[str, str]
) -> Iterator[Callable[[], Known]]:
    if environment.get(SERVICE) and environment.get(CASE):
        yield lambda: _served(environment)
    yield lambda: _of_file(file)
    if default is not None and workload is not None:
        yield lambda: Known("the script's own default", default, workload, {})


def _served(environment: Mapping[str, str]) -> Known:
    url, case = environment[SERVICE].rstrip("/"), environment[CASE]
    try:
        key = KeySource.of(environment).key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = httpx.get(f"{url}/v1/best", params={"target_key": case}, headers=headers, timeout=_PATIENCE_S)
        if answer.status_code != 200:
            raise Unusable(f"{url} has no answer for {case} ({answer.status_code}: {_said(answer)})")
        best = BestConfig.model_validate_json(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unusable(f"{url} could not be asked ({error})") from None
    return Known(f"served by {url}, {best.verdict.value}", best.best.config, best.workload, dict(best.model.config))


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase


def _of_file(file: Path) -> Known:
    try:
        task = TrialTask.model_validate_json(file.read_text())
    except OSError as error:
        raise Unusable(f"{file} cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise Unusable(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return Known(str(file), task.config, task.workload, dict(task.model.config))


def _check(known: Known, backends: tuple[Backend, ...], world: int) -> int:
    """Micro batches of a step on each rank."""
    if known.config.backend not in backends:
        raise Unusable(
            f"{known.source} is a configuration of {known.config.backend}, and the script takes {' and '.join(backends)}"
        )
    if known.config.context_parallel > 1:
        raise Unusable(
            f"{known.source} has context_parallel ({known.config.context_parallel}), which shares samples among ranks as "
            "train_snippet.py does and no script of your own; set it to 1"
        )
    if known.config.strategy.model_parallel > 1:
        raise Unusable(
            f"{known.source} splits the model over {known.config.strategy.model_parallel} ranks, as train_snippet.py does and "
            "no script of your own; set tensor_parallel and pipeline_parallel to 1"
        )
    if known.config.strategy.expert_ranks > 1:
        raise Unusable(
            f"{known.source} has expert_parallel ({known.config.strategy.expert_ranks}), which divides experts as "
            "train_snippet.py does and no script of your own; set it to 1"
        )
    try:
        known.config.strategy.check_ranks(world)
        return known.config.accumulation(known.workload.global_batch, world)
    except ValueError as error:
        raise Unusable(f"{known.source} is not for {world} ranks: {error}") from None


def _device(environment: Mapping[str, str]) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(environment.get("LOCAL_RANK", "0")))

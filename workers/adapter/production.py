"""Configuration for a user's script outside of any trial: the best known configuration, or the script's own default."""

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

SERVICE, TARGET_KEY = "SHARDTUNE_SERVICE_URL", "SHARDTUNE_TARGET_KEY"
_PATIENCE_S = 10.0
"""Time limit in seconds of a request to the service. If the service does not answer, a training job must not hang: it
can use the file or its defaults."""


@dataclass(frozen=True)
class KnownConfig:
    """Configuration for a script outside of trials, with its workload, its options and the name of its source."""

    source: str
    config: TrialConfig
    workload: Workload
    options: Mapping[str, object]


class Unusable(Exception):
    """Exception for a source (service, file or default) without a configuration that this job can run. The message
    names the reason."""


class TrainingRecorder:
    """Receiver of a script's calls outside of trials. It prepares the model and measures nothing."""

    def __init__(self, config: TrialConfig) -> None:
        self._config = config
        self._is_checked = False

    def config_for(self, backends: tuple[Backend, ...]) -> TrialConfig:
        """Configuration of the script. `adapter.configuration` has already chosen one whose backend the script
        accepts."""
        return self._config

    def prepare(self, model: nn.Module) -> None:
        """Prepare the blocks of the script's model as configured (see `ScriptTrial.prepare`)."""
        prepare_blocks(model, self._config)

    def report(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        """Check, at the first step, that all ranks train with the same configuration. They could differ, because each
        rank has requested it by itself."""
        if self._is_checked or not dist.is_initialized():
            return
        self._is_checked = True
        keys: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(keys, self._config.content_key())
        if len(set(keys)) > 1:
            raise AdapterError(
                f"the ranks have different configurations ({', '.join(map(str, keys))}): the recommended one has changed in "
                "between, or a host has another file; start again"
            )


def configuration(
    backends: tuple[Backend, ...],
    default: TrialConfig | None,
    workload: Workload | None,
    file: Path,
    environment: Mapping[str, str] = os.environ,
) -> ScriptTrial:
    """Configuration for a script outside of any trial (see `adapter.configuration`).

    Raises:
        AdapterError: no source has a configuration that this job can run.
    """
    world = int(environment.get("WORLD_SIZE", "1"))
    reasons = []
    for source in _sources(default, workload, file, environment):
        try:
            candidate = source()
            accumulation = _require_usable(candidate, backends, world)
        except Unusable as reason:
            reasons.append(str(reason))
            continue
        if int(environment.get("RANK", "0")) == 0:
            skipped = "".join(f"; {reason}" for reason in reasons)
            sys.stderr.write(f"shardtune: training with {candidate.config.describe()} ({candidate.source}{skipped})\n")
        trial = ScriptTrial(
            TrainingRecorder(candidate.config),
            candidate.config,
            candidate.workload,
            accumulation,
            dict(candidate.options),
            _device(environment),
        )
        trial.source = candidate.source
        return trial
    raise AdapterError(
        "adapter.configuration() has nothing to train with: "
        + "; ".join(reasons)
        + "; give it default=… and workload=…, or run `shardtune tune` first"
    )


def _sources(
    default: TrialConfig | None, workload: Workload | None, file: Path, environment: Mapping[str, str]
) -> Iterator[Callable[[], KnownConfig]]:
    if environment.get(SERVICE) and environment.get(TARGET_KEY):
        # Sources are functions, so that a later one is not read, and its errors not reported, when an earlier one has
        # an answer.
        yield lambda: _recommended(environment)
    yield lambda: _from_file(file)
    if default is not None and workload is not None:
        yield lambda: KnownConfig("the script's own default", default, workload, {})


def _recommended(environment: Mapping[str, str]) -> KnownConfig:
    url, target_key = environment[SERVICE].rstrip("/"), environment[TARGET_KEY]
    try:
        key = KeySource.from_environment(environment).key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = _get(f"{url}/v1/best", {"target_key": target_key}, headers)
        if answer.status_code != 200:
            raise Unusable(f"{url} has no answer for {target_key} ({answer.status_code}: {_detail(answer)})")
        best = BestConfig.model_validate_json(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unusable(f"{url} did not answer ({error})") from None
    return KnownConfig(
        f"recommended by {url}, {best.verdict}", best.best.config, best.workload, dict(best.model.config)
    )


def _get(url: str, parameters: Mapping[str, str], headers: Mapping[str, str]) -> httpx.Response:
    # trust_env off: a proxy from the environment would see the key. Certificates from the environment are used.
    with httpx.Client(trust_env=False, verify=httpx.create_ssl_context(), timeout=_PATIENCE_S) as client:
        return client.get(url, params=parameters, headers=headers)


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase


def _from_file(file: Path) -> KnownConfig:
    try:
        task = TrialTask.model_validate_json(file.read_text())
    except OSError as error:
        raise Unusable(f"{file} cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise Unusable(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return KnownConfig(str(file), task.config, task.workload, dict(task.model.config))


def _require_usable(candidate: KnownConfig, backends: tuple[Backend, ...], world: int) -> int:
    """Check that this job can run the configuration; returns the number of micro batches in a step on each rank."""
    if candidate.config.backend not in backends:
        raise Unusable(
            f"{candidate.source} is a configuration of {candidate.config.backend}, and the script takes {' and '.join(backends)}"
        )
    # The adapter leaves the model whole: these degrees need the model surgery that only catalogue models get.
    if candidate.config.context_parallel > 1:
        raise Unusable(
            f"{candidate.source} has context_parallel ({candidate.config.context_parallel}), which shares samples among ranks as "
            "train_snippet.py does and no script of your own; set it to 1"
        )
    if candidate.config.strategy.model_parallel > 1:
        raise Unusable(
            f"{candidate.source} splits the model over {candidate.config.strategy.model_parallel} ranks, as train_snippet.py does and "
            "no script of your own; set tensor_parallel and pipeline_parallel to 1"
        )
    if candidate.config.strategy.expert_ranks > 1:
        raise Unusable(
            f"{candidate.source} has expert_parallel ({candidate.config.strategy.expert_ranks}), which divides experts as "
            "train_snippet.py does and no script of your own; set it to 1"
        )
    # As in a trial: only of transformers' MLPs is it known that each token is computed by itself.
    if candidate.config.mlp_slices > 1:
        raise Unusable(
            f"{candidate.source} has mlp_slices ({candidate.config.mlp_slices}), which computes MLPs in slices as train_snippet.py "
            "does and no script of your own; set it to 1"
        )
    if candidate.config.activation_memory_budget < 1:
        raise Unusable(
            f"{candidate.source} has activation_memory_budget ({candidate.config.activation_memory_budget}), which repeats operators "
            "of blocks as train_snippet.py does and no script of your own; set it to 1"
        )
    try:
        candidate.config.strategy.check_ranks(world)
        return candidate.config.accumulation(candidate.workload.global_batch, world)
    except ValueError as error:
        raise Unusable(f"{candidate.source} is not for {world} ranks: {error}") from None


def _device(environment: Mapping[str, str]) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(environment.get("LOCAL_RANK", "0")))

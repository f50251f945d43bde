"""Training step of a trial: model, batches and loss, from transformers' catalogue or from an installed package.

A package offers its own step under a name in the entry-point group `shardtune.models`; the worker's owner allows names.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch
from torch import nn

from shardtune.api_schemas.strategies import TrialConfig, losses
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_plan import PackedPlan
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import adapters, chunked_loss, data, loss_plan, packed_batch, padded_batch
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model.context import ContextGroup
from shardtune.workers.rank.strategies.base import causal_loss

GROUP = "shardtune.models"
"""Entry-point group in which packages register their training steps."""


class Step(Protocol):
    """Model, data and loss of a training, independent of the sharding strategy."""

    def build_model(self) -> nn.Module:
        """Build the model in training mode, with parameters on the meta device and buffers computed."""

    def make_batch(self, step: int, samples: Sequence[int], device: torch.device) -> Any:
        """Make those samples of the step's global batch that `samples` lists. Their values do not depend on the rank
        that asks. A user's own code gets only ranges as `samples`."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Mean loss over the batch's samples, as a scalar tensor. It is computed by calling `model` as given, which may
        be wrapped."""


class UserStep(Protocol):
    """Interface of an entry point of `shardtune.models`: a module or an object with the functions `build_model`,
    `make_batch` and `loss`."""

    def build_model(self, config: dict[str, Any], workload: Workload) -> nn.Module:
        """Build the model of the study's `model.config`. The trial replaces initial values; frozen parameters stay frozen."""

    def make_batch(
        self, config: dict[str, Any], workload: Workload, step: int, samples: range, device: torch.device
    ) -> Any:
        """Make those samples of a step's global batch that `samples` lists (see `Step.make_batch`); `samples` lies
        within `range(workload.global_batch)`."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Scalar mean loss over the batch's samples (see `Step.loss`)."""


class UserStepError(Exception):
    """Exception for a user's own code that is missing or failed while it built the model. The trial's configuration is
    not at fault."""


def of(
    spec: ModelSpec, workload: Workload, context: ContextGroup | None = None, config: TrialConfig | None = None
) -> Step:
    """Training step (model, data and loss) for a task.

    `context`: group of ranks that share each sample (context parallelism); only for a model of transformers. `config`:
    configuration that says how the loss is computed; if None, from the logits of a whole micro batch.

    Raises:
        UserStepError: the entry point is not installed, cannot be imported or lacks a function.
        ValueError: the loss of this model cannot be computed in chunks.
    """
    if spec.entry_point is not None:
        return EntryPointStep(spec, workload)
    # None unless the loss is computed in chunks; each knob is read by its own name here, which a test asks for.
    loss_chunk = None if config is None or config.chunk_tokens is None else config.loss_chunk
    loss_compile = config is not None and config.loss_compile
    return CausalStep(spec, workload, context, loss_chunk, loss_compile=loss_compile)


class CausalStep:
    """Training step that predicts the next token, with a model of transformers and synthetic tokens."""

    def __init__(
        self,
        spec: ModelSpec,
        workload: Workload,
        context: ContextGroup | None = None,
        loss_chunk: int | None = None,
        *,
        loss_compile: bool = False,
    ) -> None:
        self._spec, self._workload, self._context = spec, workload, context
        self._loss_chunk, self._loss_compile = loss_chunk, loss_compile
        self._chunked: chunked_loss.ChunkedLoss | None = None
        self._vocab_size = 0

    def build_model(self) -> nn.Module:
        """Build the model in training mode (see `Step.build_model`)."""
        model = models.build(self._spec, self._workload)
        compute_dtype = models.DTYPES[self._workload.precision.compute_dtype]
        adapters.install(model, self._workload.adapter, compute_dtype)
        models.search_packed_samples(self._workload.data is not None and self._workload.data.is_packed)
        if self._context is not None:
            self._context.prepare(model)
        if self._loss_chunk is not None:
            self._chunked = chunked_loss.install(
                model, self._loss_plan(), self._loss_chunk, is_compiled=self._loss_compile
            )
        self._vocab_size = int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        return model

    def make_batch(
        self, step: int, samples: Sequence[int], device: torch.device
    ) -> torch.Tensor | padded_batch.PaddedBatch | packed_batch.PackedBatch:
        """Token ids of the samples, int64 of shape [samples, sequence length]. Samples of different lengths are padded
        or packed."""
        workload, plan = self._workload, self._workload.sample_plan
        if isinstance(plan, PackedPlan):
            return packed_batch.make_batch(
                plan, workload.seed, step, samples, self._vocab_size, device, workload.attention
            )
        if plan is not None:
            return padded_batch.make_batch(plan, workload.seed, step, samples, self._vocab_size, device)
        return data.samples(workload.seed, step, samples, workload.sequence_length, self._vocab_size, device)

    def loss(self, model: nn.Module, batch: torch.Tensor | padded_batch.RaggedBatch) -> torch.Tensor:
        """Next-token cross entropy of the model on one micro batch."""
        if not isinstance(batch, torch.Tensor):
            return padded_batch.loss(model, batch, self._chunked)
        if self._context is not None:
            return self._context.loss(model, batch, self._chunked)
        return causal_loss(model, batch) if self._chunked is None else self._chunked.mean(model, batch)

    def _loss_plan(self) -> loss_plan.LossPlan:
        try:
            return loss_plan.of(self._spec, self._workload)
        except ValueError as error:
            raise losses.rejected(str(error)) from error


class EntryPointStep:
    """Training step made of the three functions of an installed package."""

    def __init__(self, spec: ModelSpec, workload: Workload) -> None:
        assert spec.entry_point is not None
        self._name, self._workload = spec.entry_point, workload
        self._config: dict[str, Any] = dict(spec.config)
        self._user_step = _load(spec.entry_point)

    def build_model(self) -> nn.Module:
        """Build the model in training mode (see `Step.build_model`)."""
        try:
            with models.without_values():
                model = self._user_step.build_model(self._config, self._workload)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # a border: the user's code may raise anything
            raise UserStepError(f"{self._name}.build_model raised {type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise UserStepError(f"{self._name}.build_model returned a {type(model).__name__}; return a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UserStepError(
                f"{self._name}.build_model returned a model in which nothing is trained; unfreeze a part"
            )
        return model.train()

    def make_batch(self, step: int, samples: Sequence[int], device: torch.device) -> Any:
        """Make the given samples of a step's global batch (see `Step.make_batch`)."""
        assert isinstance(samples, range), "short steps, which repeat samples, are not planned for a user's own step"
        return self._user_step.make_batch(self._config, self._workload, step, samples, device)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Scalar mean loss over the batch's samples (see `Step.loss`)."""
        loss = self._user_step.loss(model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            returned = (
                f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            )
            raise UserStepError(
                f"{self._name}.loss returned {returned}; return one number that depends on the parameters"
            )
        return loss


def _load(name: str) -> UserStep:
    """Import the code that is registered under this name in the entry-point group `shardtune.models`."""
    # Only ranks come here: an import may start threads, and a process with threads cannot fork safely.
    candidates = list(entry_points(group=GROUP, name=name))
    if len(candidates) != 1:
        installed_names = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        problem = "not installed" if not candidates else f"installed {len(candidates)} times"
        raise UserStepError(f"entry_point ({name!r}) is {problem} in the group {GROUP}; there are: {installed_names}")
    try:
        user_step: UserStep = candidates[0].load()
    except Exception as error:  # a border: the user's code may raise anything
        raise UserStepError(
            f"{candidates[0].value} of entry point {name} raised {type(error).__name__}: {error}"
        ) from error
    missing = [part for part in ("build_model", "make_batch", "loss") if not callable(getattr(user_step, part, None))]
    if missing:
        raise UserStepError(f"{candidates[0].value} of entry point {name} has no {' and no '.join(missing)}; add it")
    return user_step

"""Trial as a user's script uses it: the configuration to apply, and reports of the script's steps."""

import contextlib
import math
import os
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol, TypeVar

import torch
from torch import nn

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import Backend
from shardtune.api_schemas.training.workload import Workload

Module = TypeVar("Module", bound=nn.Module)


class AdapterError(Exception):
    """Exception for a script that uses the adapter wrongly, or reports an impossible value."""


class Rejected(Exception):
    """Exception for a configuration that the script cannot apply. The trial counts as infeasible, and the search learns
    from this."""


class Stopped(BaseException):
    """Exception that ends the script when its trial is complete. It does not derive from `Exception`, so that a
    training loop with `except Exception` does not swallow it."""


class Recorder(Protocol):
    """Worker's side of the adapter: it receives a user script's calls, which ask for the configuration, pass the model,
    and report steps."""

    def config_for(self, backends: tuple[Backend, ...]) -> TrialConfig:
        """Configuration of the trial, if its backend is one of those that the script accepts (see
        `ScriptTrial.config_for`)."""

    def prepare(self, model: nn.Module) -> None:
        """Prepare the model for the configuration (see `ScriptTrial.prepare`)."""

    def report(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        """Record an optimizer step of the script (see `ScriptTrial.report`)."""


class ScriptTrial:
    """Trial as a user's script sees it in one rank: the configuration to apply, and this rank's figures, such as its
    number of micro batches."""

    def __init__(
        self,
        recorder: Recorder,
        config: TrialConfig,
        workload: Workload,
        accumulation: int,
        options: dict[str, object],
        device: torch.device,
    ) -> None:
        self.config = config
        """Configuration of the trial: strategy, micro batch, checkpointing, compilation."""
        self.workload = workload
        """Workload of the study: global batch, sequence length, dtypes, optimizer, seed; equal in every trial of a
        study."""
        self.accumulation = accumulation
        """Number of micro batches per optimizer step on this rank."""
        self.options = options
        """Options of the study's model (`model.config`), for the script to read."""
        self.device = device
        """Device on which this rank trains."""
        self.source = "a trial"
        """Name of the source of the configuration: `a trial` inside of a trial; else the service, file or default from
        which `adapter.configuration` took it."""
        self._recorder = recorder
        # A forked copy would report, too, and the collectives of the two processes would mix.
        self._pid = os.getpid()
        self._step = -1
        self._prepared = False

    def config_for(self, backends: tuple[Backend, ...]) -> None:
        """Declare the backends that this script can apply, and set the trial's configuration; a configuration of
        another backend is rejected.

        Raises:
            Rejected: the configuration is of another backend.
        """
        self.config = self._recorder.config_for(backends)

    @property
    def micro_batch(self) -> int:
        """Number of samples per forward pass on this rank."""
        return self.config.micro_batch

    def autocast(self) -> AbstractContextManager[object]:
        """Context for the forward pass and the loss of a loop of your own: the precision's autocast, if it has one.

        Accelerate and Trainer enter autocast themselves, and DeepSpeed by its `torch_autocast` section.
        """
        precision = self.workload.precision
        if not precision.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, precision.compute_dtype))

    @property
    def is_forked_copy(self) -> bool:
        """Whether this process is a copy that the rank's process has forked."""
        return os.getpid() != self._pid

    def prepare(self, model: Module) -> Module:
        """Register the script's model with the trial, and apply activation checkpointing and compilation to its
        repeated blocks, in place.

        Call this on the plain model, before it is wrapped or sharded and its optimizer made.
        """
        self._require_own_process()
        if self._prepared:
            raise AdapterError("prepare(model) was called twice; call it once, on the plain model")
        self._prepared = True
        self._check_low_weights(model)
        self._recorder.prepare(model)
        return model

    def report(
        self, loss: torch.Tensor | float, grad_norm: torch.Tensor | float | None = None, step: int | None = None
    ) -> None:
        """Report that an optimizer step is done; call this right after each step. It ends the script when the trial has
        enough steps.

        Args:
            loss: mean over this rank's micro batches of the step. A tensor on the device is best, because then nothing
                waits for the device.
            grad_norm: global L2 norm of the gradients before clipping; None if unknown.
            step: number of the step, if the loop counts its steps; it must rise by one from call to call.

        Raises:
            AdapterError: a reported value is impossible.
            Stopped: the script must end.
        """
        self._require_own_process()
        if not self._prepared:
            raise AdapterError("report(loss) came before prepare(model); call prepare on the plain model first")
        self._check_step(step)
        if isinstance(grad_norm, float | int) and not grad_norm >= 0 and not math.isnan(grad_norm):
            raise AdapterError(f"grad_norm ({grad_norm}) must not be negative; report the L2 norm before clipping")
        self._recorder.report(self._as_number(loss), grad_norm)

    def require_ddp_on_cpu(self, consumer: str) -> None:
        """Reject a trial on CPU ranks whose configuration a library would silently ignore there.

        Raises:
            Rejected: Accelerate or the Trainer would have to shard the model without a GPU, where Accelerate 1.15
                trains unsharded copies of it.
        """
        # Accelerate 1.15 trains whole replicas then, and the trial would time DDP under another name.
        if self.device.type == "cpu" and self.config.backend != "ddp":
            self.reject(
                f"{consumer} silently ignores {self.config.backend} on CPU ranks and would train whole replicas; "
                'tune it on GPUs, or limit the study to "space": {"backends": ["ddp"]}'
            )

    def reject(self, reason: str) -> NoReturn:
        """Reject the trial's configuration because the script cannot apply it.

        Raises:
            Rejected: always.
        """
        raise Rejected(reason)

    def _check_low_weights(self, model: nn.Module) -> None:
        """Reject a model whose trained weights have another dtype than the study's precision demands, if that precision
        keeps no float32 copy of the weights. The script would otherwise train in another precision than the study
        states."""
        precision = self.workload.precision
        if not precision.has_low_states:
            return
        expected = getattr(torch, precision.master_dtype)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.is_floating_point() and parameter.dtype != expected:
                raise AdapterError(
                    f"prepare(model): {name} is {parameter.dtype}, and the study's precision ({precision.name}) trains weights in "
                    f"{expected}; load the model with dtype={expected}"
                )

    def _check_step(self, step: int | None) -> None:
        if step is None:
            return
        if step < 0 or (self._step >= 0 and step != self._step + 1):
            position = f"after step {self._step}" if self._step >= 0 else "first"
            raise AdapterError(f"step ({step}) was reported {position}; report every optimizer step once, in order")
        self._step = step

    def _as_number(self, loss: torch.Tensor | float) -> torch.Tensor:
        number = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
        if number.numel() != 1:
            raise AdapterError(f"loss has shape {tuple(number.shape)}; report one number, the mean over micro batches")
        return number.reshape(()).to(self.device, torch.float32)

    def _require_own_process(self) -> None:
        if self.is_forked_copy:
            raise AdapterError(
                f"process {os.getpid()} used the trial of process {self._pid}, which forked it; "
                "the worker starts all ranks: fork none that trains"
            )

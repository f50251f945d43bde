"""Backend for DeepSpeed ZeRO stages 1-3, configured by the renderer that also exports configurations."""

import importlib
import math
import warnings
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.utils import logger, set_z3_leaf_modules
from torch import nn

from shardtune.api_schemas.strategies import ZeroConfig
from shardtune.api_schemas.training.optimizers import AdamSettings
from shardtune.workers.rank.classify import NumericsError, SetupError
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import moe, weights
from shardtune.workers.rank.strategies import base, optimizers
from shardtune.workers.rank.strategies.optimizers import adamw
from shardtune.workers.rank.strategies.state_dtypes import StateCheck
from shardtune.workers.rank.strategies.zero1_gradients import LastMicroBatchWatch

_TAG = "engine"
"""DeepSpeed's name ("tag") for a checkpoint among several in a folder. Each folder contains one only, so that the name
is fixed."""


class ZeroTrainer:
    """Trainer around a DeepSpeed engine. With ZeRO stage 3 the model is built sharded, one parameter at a time."""

    def __init__(self, model: nn.Module, setting: base.TrainingSetup, config: ZeroConfig) -> None:
        _quieten()
        workload, place = setting.task.workload, setting.context
        if workload.precision.scales_loss and not place.is_cuda:
            # DeepSpeed (0.19.8) rejects processors without float16 units, on which torch emulates it.
            get_accelerator().is_fp16_supported = lambda: True
        trial = setting.task.config
        document = config.to_deepspeed(workload, trial.micro_batch, setting.accumulation, trial.context_parallel)
        if config.stage == 3:
            _partition(model, setting, document)
            classes = moe.classes_in(model)
            if classes:
                # The router picks other experts on every rank; hooks inside would gather in different orders and hang.
                set_z3_leaf_modules(model, classes)
        else:
            models.materialize(model, place.device, setting.weights_dtype, workload.seed, setting.weights_dtype)
        buffers = models.buffers_of(model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        settings = workload.optimizer
        # `wrap.make_trainer` has rejected other optimizers: DeepSpeed steps flat partitions.
        assert isinstance(settings, AdamSettings), settings
        optimizer = (
            DeepSpeedCPUAdam(
                parameters,
                adamw_mode=True,
                # By default its moments are float32 whatever the masters are.
                fp32_optimizer_states=not workload.precision.has_low_states,
                **adamw.options(settings),
            )
            if config.offload_optimizer is not None
            else optimizers.make(settings, parameters, shard=place.rank).members[0]
        )
        self._engine: Any = deepspeed.initialize(
            model=model, optimizer=optimizer, model_parameters=parameters, config=document, dist_init_required=False
        )[0]
        if config.deepcompile:
            # Imported here, because it asks NVML for GPUs (`process.cpu_adam`).
            require_cuda_toolkit(importlib.import_module("torch.utils.cpp_extension").CUDA_HOME)
            self._engine.compile()
        _restore_buffers(model, buffers)
        # Published models use all parameters in every micro batch; the hooks would only cost time there. Without
        # `overlap_comm`, stage 1 reduces all gradients after the last micro batch (`reduce_gradients`).
        watches = config.stage == 1 and config.overlap_comm and setting.accumulation > 1 and setting.task.model.is_own
        self._gradient_watch = LastMicroBatchWatch(model) if watches else None
        self._place, self._trained_only = place, setting.saves_trained_only
        self._state_check, self._scales_loss = StateCheck(setting), workload.precision.scales_loss
        # The engine enters its own autocast (`torch_autocast`), and would leave one around it.
        self._loss = setting.loss

    def begin_step(self, micro_batches: int) -> None:
        """Average gradients over this number of micro batches (see `Trainer.begin_step`)."""
        engine = self._engine
        if engine.gradient_accumulation_steps() != micro_batches:
            engine.set_train_batch_size(micro_batches * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
            # The engine ends a step where its count of all micro batches is a multiple of the accumulation, which holds
            # only while no step had another accumulation (DeepSpeed 0.19.8).
            engine.micro_steps = 0

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss.
        DeepSpeed's engine itself divides by the number of micro batches, which it counts by the calls of `step`."""
        loss = self._loss(self._engine, batch)
        self._engine.backward(loss)
        if self._gradient_watch is not None:
            self._gradient_watch.end_micro_batch(last)
        if not last:
            self._engine.step()
        return loss.detach()

    def optimizer_step(self) -> torch.Tensor | float:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""
        if self._skips():
            return math.inf
        norm: torch.Tensor | float | None = self._engine.get_global_grad_norm()
        assert norm is not None, "DeepSpeed took no optimizer step: accumulation boundary missed"
        self._state_check.after_step(_stepped(self._engine.optimizer))
        return norm

    def _skips(self) -> bool:
        """Run the engine's step. Returns whether the engine's loss scale skipped the update; if so, the gradient norm
        has no meaning.

        Raises:
            NumericsError: gradients overflow at the smallest scale.
        """
        try:
            self._engine.step()
        except Exception as error:  # a border: DeepSpeed (0.19.8) raises a bare one
            if "loss scale already at minimum" not in str(error):
                raise
            raise NumericsError(
                "gradients overflowed float16 at a loss scale of 1; use precision 'bf16-mixed'"
            ) from error
        return self._scales_loss and bool(self._engine.optimizer.overflow)

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights of the model (see `Trainer.parameter_checksum`). The padding at
        the end of a partition does not change them: it is zero and stays so."""
        return base.reduce_checksum(base.checksum_of(_masters(self._engine.optimizer)), self._place)

    def save(self, folder: Path) -> None:
        """Write master weights and optimizer state into a folder that all ranks share (see `Trainer.save`)."""
        self._engine.save_checkpoint(str(folder), tag=_TAG, exclude_frozen_parameters=self._trained_only)

    def load(self, folder: Path) -> None:
        """Load the master weights and optimizer state of a checkpoint (see `Trainer.load`)."""
        path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=not self._trained_only)
        assert path is not None, "DeepSpeed found no checkpoint"

    def close(self) -> None:
        """Release the trainer's resources at the end of the trial (see `Trainer.close`)."""
        self._engine.destroy()


def require_cuda_toolkit(cuda_home: str | None) -> None:
    """Check that DeepCompile's operator can be built.

    Raises:
        SetupError: there is no CUDA toolkit. Without this check DeepSpeed (0.19.8) would fail with a TypeError.
    """
    if cuda_home is None:
        raise SetupError(
            "deepcompile (true) builds an operator with nvcc, and this machine has no CUDA toolkit; install one and set "
            "CUDA_HOME, or set deepcompile to false"
        )


def _masters(optimizer: Any) -> list[torch.Tensor]:
    """Flat master weights of this rank. Each of DeepSpeed's optimizers keeps them in an attribute of another name."""
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
        if hasattr(optimizer, name):
            masters: list[torch.Tensor] = getattr(optimizer, name)
            return masters
    raise AttributeError(f"DeepSpeed's {type(optimizer).__name__} shows no master weights")


def _stepped(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Torch optimizers that one DeepSpeed optimizer uses. With partial offload there are two: one for the host, one for
    the device."""
    inner = (optimizer.optimizer, getattr(optimizer, "backup_optimizer", None))
    return [member for member in inner if member is not None]


def _quieten() -> None:
    """Silence routine messages of DeepSpeed and torch, so that the rank's log stays readable."""
    logger.setLevel("WARNING")
    # torch 2.13 warns at each collective that DeepSpeed's wrapper calls.
    warnings.filterwarnings("ignore", module=r"torch\.distributed\.distributed_c10d")
    # DeepSpeed's shared-memory collectives serve inference only, yet its backend would compile them here (50 s).
    vars(deepspeed.ops)["__compatible_ops__"] = {}


def _restore_buffers(model: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    """Restore the dtype of buffers. Some versions of DeepSpeed cast rotary frequencies to bfloat16, which changes the
    training."""
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if buffer.dtype != buffers[name].dtype:
            owner, _, key = name.rpartition(".")
            model.get_submodule(owner)._buffers[key] = buffers[name].to(buffer.device)


class _Partitioner(deepspeed.zero.Init):  # type: ignore[misc]
    """Variant of DeepSpeed's zero.Init for a model on the meta device. Each rank computes the values of its own
    partition instead of receiving them."""

    def place(self, parameter: Any, name: str, seed: int, round_to: torch.dtype) -> None:
        """Turn a parameter on the meta device into a ZeRO-3 partition with its initial values."""
        self._convert_to_deepspeed_param(parameter)
        size = -(-parameter.ds_numel // self.dp_world_size)
        start = min(size * self.rank, parameter.ds_numel)
        own_count = min(size, parameter.ds_numel - start)
        # hpZ also keeps a second partition by another rule, taken from the whole; then the whole is filled.
        fills_whole = self.zero_param_process_group is not None
        flat = parameter.data.view(-1)
        part = flat if fills_whole else flat[start : start + own_count]
        weights.fill_(part, name, parameter.ds_shape, 0 if fills_whole else start, seed, round_to)
        parameter.partition()
        # DeepSpeed leaves the padding of the last partition as it was in memory; it would enter norms and sums.
        parameter.ds_tensor.narrow(0, own_count, parameter.ds_tensor.numel() - own_count).zero_()


def _partition(model: nn.Module, setting: base.TrainingSetup, document: dict[str, Any]) -> None:
    """Replace a model's meta parameters by ZeRO-3 partitions; at most one whole parameter is in memory at a time."""
    place = setting.context
    deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, verbose=False)
    partitioner = _Partitioner(config_dict_or_path=document, dtype=setting.weights_dtype)
    seed = setting.task.workload.seed

    def make(name: str, old: nn.Parameter) -> nn.Parameter:
        value = torch.empty(old.shape, dtype=setting.weights_dtype, device=place.device)
        parameter = nn.Parameter(value, requires_grad=old.requires_grad)
        # Dropped before partitioning: a second reference would keep the whole parameter alive.
        del value
        partitioner.place(parameter, name, seed, setting.weights_dtype)
        return parameter

    models.replace_parameters(model, make)
    models.move_buffers(model, place.device)

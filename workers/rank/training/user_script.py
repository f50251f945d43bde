"""Run of a user's script as one rank of a trial, measured by the steps that the script reports.

Plan, clock and memory meter are those of every trial (`workers.rank.training.loop`); the script runs steps.
"""

import contextlib
import faulthandler
import json
import math
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.search_space import Backend
from shardtune.api_schemas.training.step_trace import TraceFailure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers import adapter
from shardtune.workers.blocks.host_inputs import HostInputs
from shardtune.workers.blocks.prepare import prepare_blocks
from shardtune.workers.rank import mesh, trial_dir
from shardtune.workers.rank.classify import NumericsError
from shardtune.workers.rank.measure import memory
from shardtune.workers.rank.process.activity import ActivityMeter
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies import base
from shardtune.workers.rank.training import model_summary
from shardtune.workers.rank.training.data_wait import DataWait, count_waits
from shardtune.workers.rank.training.loop import Loop
from shardtune.workers.rank.training.step_runs import Steps

_SILENT_S = 60
"""Seconds without a report from the script after which the script's stack is written to the rank's log, once per
run."""
_PROFILE_CONFIGS: dict[Backend, TrialConfig] = {
    "ddp": TrialConfig(strategy=DdpConfig()),
    "zero": TrialConfig(strategy=ZeroConfig(stage=2)),
    "fsdp1": TrialConfig(strategy=Fsdp1Config(dp_shard=1)),
    "fsdp2": TrialConfig(strategy=Fsdp2Config(dp_shard=1)),
}
"""Configurations under which a script runs when only a summary of its model is wanted: such a task names no
configuration. The script is ended as soon as its model is known."""

_NOT_TRACED = TraceFailure(
    code="script",
    message="a script runs its steps itself, so none can be traced alone; an entry point with a loss is traced",
)


class ScriptRecorder:
    """Receiver of a user script's reports. Once it is `complete`, `loop` contains the measurements. Memory is measured
    from the creation of this object on."""

    def __init__(self, task: TrialTask, place: RankContext, folder: Path, progress: trial_dir.ProgressFile) -> None:
        setting = base.TrainingSetup.of(task, place)
        self.accumulation = setting.accumulation
        self.meter = memory.start_meter(place.accelerator)
        self.wait = DataWait(place.accelerator)
        self.loop = _ReportedLoop(self._checksum, setting, None, progress)
        self.loop.wait = self.wait
        self.reports = 0
        self.complete = False
        self._place, self._folder, self._config, self._progress = place, folder, task.config, progress
        self._start_up = contextlib.ExitStack()
        self._steps = self.loop.steps(self.meter)
        self._model: nn.Module | None = None
        self._inputs: HostInputs | None = None
        self._trained = 0

    def starting_up(self) -> contextlib.ExitStack:
        """Context of the script's run, in which its work counts as progress until its first report."""
        self._start_up.enter_context(_work_as_progress(self._progress))
        return self._start_up

    def config_for(self, backends: tuple[Backend, ...]) -> TrialConfig:
        """Trial configuration for the script; rejects a configuration whose backend the script does not accept (see
        `ScriptTrial.config_for`)."""
        if self._config.backend not in backends:
            raise adapter.Rejected(f"the script takes {' and '.join(backends)} only, not {self._config.backend}")
        return self._config

    def prepare(self, model: nn.Module) -> None:
        """Prepare the blocks of the script's model as configured, and count its trained parameters (see
        `ScriptTrial.prepare`)."""
        self._inputs = prepare_blocks(model, self._config)
        self._model = model
        self._trained = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def report(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        """Record a step's loss and gradient norm from the script; ends the script when the plan is satisfied (see
        `ScriptTrial.report`)."""
        faulthandler.dump_traceback_later(_SILENT_S)
        if self.complete:
            raise adapter.Stopped
        if self._inputs is not None:
            self._inputs.check()
        if self.reports == 0:
            self._start_up.close()
            # From here on, a busy processor is no progress, also for the launcher: a hang may keep it busy.
            self._progress.write(Progress(phase="warming_up"))
            _require_group(self._place, self._folder)
            self.loop.begin_clock()
            next(self._steps)
        self.reports += 1
        try:
            self._steps.send((loss, grad_norm))
        except StopIteration:
            self.complete = True
            raise adapter.Stopped from None

    def _checksum(self) -> tuple[float | None, float | None]:
        """Sum and sum of squares of the trained parameters over all ranks; None if parameters cannot be read because of
        the way the script shards them."""
        assert self._model is not None
        total = torch.zeros(3, dtype=torch.float64)
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                local_part, copies = _local_part(parameter, self._place.world_size)
                sums = base.checksum_of([local_part])
                figures = [local_part.numel(), float(sums[0]), float(sums[1])]
                total += torch.tensor(figures, dtype=torch.float64) / copies
        total = total.to(self._place.device)
        dist.all_reduce(total)
        # Fewer elements than the plain model had: the script's sharding hides some (FSDP1's flat parameters, ZeRO).
        element_count, sum_, squares = (float(value) for value in total.tolist())
        return (sum_, squares) if round(element_count) == self._trained else (None, None)


class _ReportedLoop(Loop):
    wait: DataWait

    def _measure(self) -> Steps[None]:
        before = self.wait.seconds or 0.0
        yield from super()._measure()
        if self.wait.seconds is not None:
            self.outcome.data_wait_s = self.wait.seconds - before

    def _note_losses(self, losses: list[float]) -> None:
        super()._note_losses(losses)
        for loss in losses:
            if loss < 0:
                raise NumericsError(
                    f"the script reported a loss of {loss} near step {len(self.outcome.losses)}, "
                    "but cross entropy is never negative; report the loss that is minimised"
                )


class _ProfileRecorder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._backends: tuple[Backend, ...] | None = None

    def config_for(self, backends: tuple[Backend, ...]) -> TrialConfig:
        self._backends = backends
        return _PROFILE_CONFIGS[backends[0]]

    def prepare(self, model: nn.Module) -> None:
        facts = {"backends": self._backends, "trace_failure": _NOT_TRACED, "note": _NOT_TRACED.note}
        trial_dir.write_model_summary(self._folder, model_summary.of_model(model).model_copy(update=facts))
        raise adapter.Stopped

    def report(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        raise AssertionError("prepare comes first, and ends the script")


def run_trial(recorder: ScriptRecorder, task: TrialTask, place: RankContext, folder: Path) -> None:
    """Run the user's script until the trial's plan is satisfied.

    Raises:
        AdapterError: the script ended before the plan was satisfied, or trained in processes of its own.
        Exception: any exception of the script.
    """
    trial = adapter.ScriptTrial(
        recorder, task.config, task.workload, recorder.accumulation, _options(task), place.device
    )
    mesh.use_loopback(place)
    with count_waits(recorder.wait), recorder.starting_up():
        _run(folder, place.rank, trial)
    if not recorder.complete:
        raise adapter.AdapterError(
            f"the script ended after {recorder.reports} reported steps, before the trial had seen enough; "
            "call trial.report(loss) after every optimizer step, and go on until it ends the script"
        )


def run_profile(task: ModelSummaryTask, folder: Path, progress: trial_dir.ProgressFile) -> None:
    """Run the user's script on one process until its model is known, to summarize the model.

    Raises:
        AdapterError: the script never called `prepare`.
        Exception: any exception of the script.
    """
    device = torch.device("cpu")
    trial = adapter.ScriptTrial(
        _ProfileRecorder(folder),
        _PROFILE_CONFIGS["ddp"],
        task.workload,
        task.workload.global_batch,
        _options(task),
        device,
    )
    mesh.use_loopback(RankContext.from_environment("cpu"))
    with _work_as_progress(progress):
        _run(folder, 0, trial)
    if not (folder / "model_summary.json").exists():
        raise adapter.AdapterError("the script ended without trial.prepare(model); call it on the plain model")


def _work_as_progress(progress: trial_dir.ProgressFile) -> contextlib.AbstractContextManager[None]:
    """Context in which a script's work counts as progress. It loads data and weights before its first report, perhaps
    for longer than a run may go without progress. A script that hangs does no work, except one that waits for a GPU:
    CUDA spins meanwhile by default, so that only the deadline ends it."""
    return progress.refreshed_by_work(Progress(phase="building"), ActivityMeter().has_worked)


def _options(task: TrialTask | ModelSummaryTask) -> dict[str, Any]:
    return dict(task.model.config)


def _run(folder: Path, rank: int, trial: adapter.ScriptTrial) -> None:
    """Run the user's script in this process as `python` would run it, until it ends or the trial ends it."""
    command = json.loads((folder / "script.json").read_text())
    path = str(command["path"])
    adapter.hand_in(trial)
    # As `python script.py` would: argv[0] is the script, and its folder comes first on the path.
    sys.argv = [path, *command["arguments"]]
    sys.path.insert(0, str(Path(path).parent))
    faulthandler.dump_traceback_later(_SILENT_S)
    # A forked copy of the rank cannot raise into this process; its traceback comes back in this file.
    note = folder / f"forked_{rank}.txt"
    try:
        runpy.run_path(path, run_name="__main__")
    except adapter.Stopped:
        _end_if_forked(trial, note)
    # BaseException: scripts leave by sys.exit, and a forked copy must end whatever it raises.
    except BaseException as error:
        _end_if_forked(trial, note)
        if isinstance(error, AttributeError) and error.obj is trial.config.strategy:
            raise adapter.Rejected(
                f"the script asked a configuration of {trial.config.backend} for {error.name}, which it does not have; say "
                "what the script takes: adapter.configuration(backends=(…))"
            ) from error
        if not isinstance(error, SystemExit):
            raise
        if error.code not in (None, 0):
            raise adapter.AdapterError(f"the script left with sys.exit({error.code!r})") from error
    finally:
        _end_if_forked(trial, note)
        faulthandler.cancel_dump_traceback_later()
    if note.exists():
        raise adapter.AdapterError(f"the script trained in a process that it had forked:\n{note.read_text()}")


def _end_if_forked(trial: adapter.ScriptTrial, note: Path) -> None:
    """End this process if it is a fork that the script made of the rank, and save its traceback for the rank's report."""
    if trial.is_forked_copy:
        if sys.exc_info()[0] is not None:
            note.write_text(traceback.format_exc()[-10_000:])
        # Not sys.exit: the copy must run none of the rank's exit handlers, nor go on as the rank.
        os._exit(1)


def _require_group(place: RankContext, folder: Path) -> None:
    """Check that the ranks joined one process group, of the worker's world size, before the script's first report."""
    if not dist.is_initialized():
        if place.world_size > 1:
            raise adapter.AdapterError(
                "trial.report(loss) came before torch.distributed was initialised; call init_process_group (accelerate "
                "and Trainer do it themselves) before the first step"
            )
        mesh.join(place, folder)
    if dist.get_world_size() != place.world_size:
        raise adapter.AdapterError(
            f"the script trains on {dist.get_world_size()} ranks, but the worker started {place.world_size}; "
            "take rank and world size from the environment"
        )


def _local_part(parameter: nn.Parameter, world_size: int) -> tuple[torch.Tensor, int]:
    """Part of a parameter that this rank holds, and how many ranks hold the same part."""
    if not isinstance(parameter, DTensor):
        return parameter, world_size
    axes = parameter.device_mesh
    copies = math.prod(axes.size(i) for i, placed in enumerate(parameter.placements) if isinstance(placed, Replicate))
    return parameter.to_local(), copies * (world_size // axes.size())

"""The GPUs of this machine, or CPU ranks that stand for them, as the tests of GPUs use them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ResumeTask, TraceTask, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.trial_dir import TrialDir
from tests.support.ranks.gpu_models import GIB, model_for, stand_in_model

RESULTS = "SHARDTUNE_GPU_TEST_RESULTS"
"""Name of the variable with the path of a file: each task and its result are appended there, one line of JSON each, so
that predictions can be compared with them on another machine."""
Result = Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | Failure


@dataclass(frozen=True)
class GpuMachine:
    """Runs tasks on all of its GPUs."""

    place: Workplace
    cluster: dict[str, Any]
    fingerprint: Fingerprint

    def task(self, strategy: dict[str, Any], **config: Any) -> TrialTask:
        """A trial of a model of this card's size; fields of the workload and `model` beside knobs."""
        if strategy["kind"] == "zero" and self.fingerprint.deepspeed is None:
            pytest.skip("deepspeed is not installed here")
        world = self.cluster["gpus_per_node"]
        on_gpus = self.cluster["device"] == "cuda"
        mesh = {"dp_shard": world} if strategy["kind"] in ("fsdp1", "fsdp2") else {}
        workload = {
            "adapter": config.pop("adapter", None),
            "sequence_length": 512 if on_gpus else 32,
            "global_batch": config.pop("global_batch", 2 * world),
            "precision": config.pop("precision", "bf16-mixed"),
        }
        workload |= {name: config.pop(name) for name in ("data", "float8", "optimizer") if name in config}
        return TrialTask.model_validate(
            {
                "model": config.pop(
                    "model", model_for(self.cluster["memory_gib"] * GIB) if on_gpus else stand_in_model()
                ),
                "workload": workload,
                "cluster": self.cluster,
                "config": {"strategy": mesh | strategy, **config},
                "plan": {"parity_steps": 3, "max_warmup_steps": 3, "min_windows": 2, "max_windows": 3},
            }
        )

    def run(self, task: TrialTask | ResumeTask | TraceTask) -> Result:
        """Outcome of the task."""
        done = run_attempt(
            self.place,
            task,
            lambda: TrialDir.create(self.place.work_dir, "gpu", task, self.fingerprint, 0.1),
            RunLimits(120, 60),
            lambda: None,
        )
        assert done is not None
        if path := os.environ.get(RESULTS):
            with Path(path).open("a") as file:
                record = {"task": task.model_dump(mode="json"), "result": done.result.model_dump(mode="json")}
                file.write(json.dumps(record) + "\n")
        return done.result

    def measured(self, task: TrialTask) -> Measurement:
        """Measurement of the trial, which must have one."""
        result = self.run(task)
        assert isinstance(result, Measurement), result
        return result

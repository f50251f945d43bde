"""The GPUs of this machine, or CPU ranks that stand for them, as the tests of GPUs use them."""

from dataclasses import dataclass
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
from tests.support.ranks.gpu_models import GIB, model_for

Result = Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | Failure


@dataclass(frozen=True)
class GpuMachine:
    """Runs tasks on all of its GPUs."""

    place: Workplace
    cluster: dict[str, Any]
    fingerprint: Fingerprint

    def task(self, strategy: dict[str, Any], **config: Any) -> TrialTask:
        """A trial of a model of this card's size; `global_batch`, `precision` and `model` beside knobs."""
        if strategy["kind"] == "zero" and self.fingerprint.deepspeed is None:
            pytest.skip("deepspeed is not installed here")
        world = self.cluster["gpus_per_node"]
        mesh = {"dp_shard": world} if strategy["kind"] in ("fsdp1", "fsdp2") else {}
        workload = {
            "sequence_length": 512,
            "global_batch": config.pop("global_batch", 2 * world),
            "precision": config.pop("precision", "bf16-mixed"),
        }
        return TrialTask.model_validate(
            {
                "model": config.pop("model", model_for(self.cluster["memory_gib"] * GIB)),
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
        return done.result

    def measured(self, task: TrialTask) -> Measurement:
        """Measurement of the trial, which must have one."""
        result = self.run(task)
        assert isinstance(result, Measurement), result
        return result

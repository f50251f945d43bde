"""A worker that speaks the real protocol over HTTP and computes its measurements from the configuration."""

from collections.abc import Callable
from typing import Any

import httpx

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import BlockSummary, ModelSummary
from shardtune.api_schemas.trials.diagnosis import (
    CollectiveFigures,
    Diagnosis,
    Lane,
    ProfilerRecording,
    RankStep,
    StepParts,
    Timeline,
)
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import (
    Lease,
    ModelSummaryTask,
    RehearsalTask,
    ResumeTask,
    TargetRehearsalTask,
    TraceTask,
    TrialTask,
)
from shardtune.api_schemas.trials.measurements import Measurement, Memory, StepRecord
from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer, RehearsalReport, RehearsedRank
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement

CLUSTER = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16)
FINGERPRINT = Fingerprint(
    device="cpu",
    gpu="cpu",
    gpu_count=0,
    gpu_memory_gib=None,
    driver=None,
    cuda=None,
    nccl=None,
    torch="2.13.0",
    deepspeed="0.19.8",
    transformers="5.23.0",
    python="3.11.2",
    kernel="6.1",
    cpu="simulated",
    cpu_count=2,
    host_memory_gib=16,
    native_dtypes="float32, bfloat16",
    environment=(),
)
MODEL_SUMMARY = ModelSummary(
    parameters=1_000_000,
    active_parameters=1_000_000,
    blocks=tuple(
        BlockSummary(
            name=f"model.layers.{index}", parameters=200_000, largest_parameter=65_536, forward_flops_per_token=4e5
        )
        for index in range(4)
    ),
    block_class="LlamaDecoderLayer",
    forward_flops_per_token=2e6,
    hidden_size=128,
    vocab_size=512,
    max_positions=256,
)
SPEC: dict[str, Any] = {
    "model": "llama-tiny",
    "workload": {"sequence_length": 64, "global_batch": 8},
    "budget": {"max_trials": 8},
    # Speeds of simulated trials follow a formula of their own, which no prediction knows: what these studies are about
    # is what becomes of their trials. tests/flow/studies/test_samplers.py is about who proposes them.
    "sampler": "tpe",
}

Behaviour = Callable[[Lease, TrialTask], Measurement | Failure]


def measurement(speed: float, peak_gib: float = 0.5, loss: float = 5.0) -> Measurement:
    """A complete run at this speed; `loss` names the trajectory."""
    return Measurement(
        tokens_per_s_per_gpu=speed,
        step_time_s=512 / speed,
        step_time_half_width_s=0.0,
        memory=Memory(peak_allocated_gib=peak_gib),
        wrap_time_s=0.1,
        warmup_steps=3,
        measured_steps=9,
        window_step_times_s=(512 / speed,) * 3,
        trajectory=tuple(
            StepRecord(step=i, loss=loss - 0.1 * i, grad_norm=1.0, parameter_sum=3.0, parameter_square_sum=90.0)
            for i in range(3)
        ),
        losses=tuple(loss - 0.1 * i for i in range(12)),
        gradient_accumulation=1,
        elapsed_s=3.0,
    )


def restarted(loss: float = 5.0, **changes: Any) -> ResumeMeasurement:
    """A run that went on from its checkpoint; `loss` is that of the new processes, who saved went on with 5.0."""

    def steps(first: float) -> list[dict[str, float]]:
        figures = {"grad_norm": 1.0, "parameter_sum": 3.0, "parameter_square_sum": 90.0}
        return [{"step": 20 + i, "loss": first - 0.1 * i} | figures for i in range(5)]

    values = {
        "saved_at_step": 20,
        "losses": [5.0] * 25,
        "uninterrupted": steps(5.0),
        "resumed": steps(loss),
        "save_s": 0.5,
        "load_s": 0.25,
        "checkpoint_bytes": 12_000_000,
        "elapsed_s": 6.0,
    }
    return ResumeMeasurement.model_validate(values | changes)


def rehearsed(task: TargetRehearsalTask, gib: float = 0.01) -> RehearsalReport:
    """A rehearsal whose ranks need this memory, whatever their depth."""
    return RehearsalReport(answers=tuple(_rehearsed_rank(part, gib) for part in task.parts), elapsed_s=20.0)


def _rehearsed_rank(part: RehearsalTask, gib: float) -> RehearsalAnswer:
    size = round(gib * (1 << 30))
    blocks = part.trial.model.config["num_hidden_layers"]
    assert isinstance(blocks, int)
    seen = RehearsedRank(
        rank=part.rank, blocks=blocks, peak_bytes=size, parts={"forward": size}, process_groups=1, set_up_s=0.5,
        cpu_s=9.0, peak_rss_mib=410.0,
    )  # fmt: skip
    return RehearsalAnswer(seen=seen)


def diagnosis(ranks: int = 2, steps: int = 3, host_s: float = 0.2, **changes: Any) -> Diagnosis:
    """Diagnosis of steps of a second: the host takes some, half is computation, the remainder is exposed
    communication."""
    parts = StepParts(compute_s=0.5, optimizer_s=0.1, host_s=host_s, transferring_s=round(0.4 - host_s, 9))
    gathered = CollectiveFigures(
        kind="all_gather",
        purpose="parameters",
        group_size=ranks,
        calls=10,
        message_bytes=4_000_000,
        moved_bytes=20_000_000,
        transferring_s=parts.transferring_s,
        waiting_s=0.0,
        exposed_s=parts.transferring_s,
        bytes_per_s=1e8,
    )
    lane = "c" * 100 + "o" * 20 + "h" * round(200 * host_s) + "t" * round(200 * (0.4 - host_s))
    actual_diagnosis = Diagnosis(
        device="cpu",
        world_size=ranks,
        ranks=tuple(range(ranks)),
        step_s=1.0,
        parts=parts,
        overlap=0.25,
        steps=tuple(
            RankStep(rank=rank, step=step, parts=parts, communication_s=0.3, hidden_s=0.1)
            for step in range(steps)
            for rank in range(ranks)
        ),
        collectives=(gathered,),
        timeline=Timeline(
            step=1,
            seconds=1.0,
            lanes=tuple(Lane(rank=rank, parts=lane, communication="." * len(lane)) for rank in range(ranks)),
        ),
        recorded=ProfilerRecording(
            folder="work/traces", bytes=1_000_000, steps=3, step_s=1.0, plain_step_s=0.9, elapsed_s=12.0
        ),
    )
    return actual_diagnosis.model_copy(update=changes)


def speed_of(config: TrialConfig) -> float:
    """FSDP2 is fastest here, and larger micro batches help everyone."""
    base = {"ddp": 1000.0, "zero": 900.0, "fsdp2": 1150.0, "fsdp1": 1050.0}[config.backend]
    return base * (1 + 0.1 * config.micro_batch)


def well(_lease: Lease, task: TrialTask) -> Measurement | Failure:
    """Every run succeeds."""
    return measurement(speed_of(task.config))


def quietly(_lease: Lease, task: TrialTask) -> Measurement:
    """Every run succeeds, and its windows lie close together: three to six pairs are enough then instead of seven."""
    return on_quiet_machine(measurement(speed_of(task.config)))


def on_quiet_machine(run: Measurement) -> Measurement:
    """The same run, whose windows lie within a thousandth of the step time."""
    return run.model_copy(update={"step_time_half_width_s": 0.001 * run.step_time_s})


def failure(kind: FailureKind, message: str = "simulated") -> Failure:
    return Failure(kind=kind, message=message)


class SimulatedWorker:
    """One life of a worker. `client` is any httpx client of the service."""

    def __init__(
        self,
        client: httpx.Client,
        name: str = "sim",
        behave: Behaviour = well,
        cluster: Cluster = CLUSTER,
        resume_check: Callable[[Lease], ResumeMeasurement | Failure] = lambda _: restarted(),
        trace: Callable[[Lease], Diagnosis | Failure] = lambda _: diagnosis(),
        raw_trace: Callable[[Lease], bytes] | None = None,
        rehearse: Callable[[TargetRehearsalTask], RehearsalReport | Failure] = rehearsed,
        **inventory: Any,
    ) -> None:
        """Worker of the release before the resume check, unless `task_kinds` says otherwise. `raw_trace`: what rank 0
        recorded."""
        self.client, self.name, self.behave, self.resume_check = client, name, behave, resume_check
        self.trace, self.raw_trace, self.rehearse = trace, raw_trace, rehearse
        self.session = ""
        fingerprint = inventory.pop("fingerprint", FINGERPRINT)
        self.inventory = Inventory(cluster=cluster, fingerprint=fingerprint, **inventory)

    def register(self, **body: Any) -> "SimulatedWorker":
        """Begin a new life; with its `session`, bring what the inventory is now."""
        answer = self.introduce(**body)
        answer.raise_for_status()
        self.session = answer.json()["session"]
        return self

    def introduce(self, **body: Any) -> httpx.Response:
        """Ask to be taken in."""
        body = {"name": self.name, "inventory": self.inventory.model_dump(mode="json")} | body
        return self.client.post("/v1/workers", json={"protocol_version": PROTOCOL_VERSION} | body)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        session = {"session": self.session} if self.session else {}
        return self.client.post(path, json={"protocol_version": PROTOCOL_VERSION} | session | body)

    def lease(self, wait_s: float = 0) -> Lease | None:
        answer = self.post("/v1/leases", {"wait_s": wait_s})
        answer.raise_for_status()
        return None if answer.status_code == 204 else Lease.model_validate(answer.json())

    def heartbeat(self, lease: Lease, **body: Any) -> dict[str, Any]:
        answer = self.post(f"/v1/runs/{lease.run_id}/heartbeat", {"attempt": lease.attempt} | body)
        answer.raise_for_status()
        return answer.json()

    def report(self, lease: Lease, outcome: Any, **body: Any) -> httpx.Response:
        """Deliver a measurement, a profile, a restart, a diagnosis or a failure."""
        kinds = {
            Measurement: "measurement",
            ModelSummary: "model_summary",
            ResumeMeasurement: "resume_check",
            Diagnosis: "diagnosis",
            RehearsalReport: "rehearsal",
            Failure: "failure",
        }
        body = {
            "attempt": lease.attempt,
            "gpu_seconds": 6.0,
            kinds[type(outcome)]: outcome.model_dump(mode="json"),
        } | body
        return self.post(f"/v1/runs/{lease.run_id}/report", body)

    def send_trace(self, lease: Lease, rank: int, content: bytes) -> httpx.Response:
        """Deliver what a rank recorded."""
        headers = {
            "content-type": "application/octet-stream",
            "shardtune-session": self.session,
            "shardtune-attempt": str(lease.attempt),
        }
        return self.client.put(f"/v1/runs/{lease.run_id}/traces/{rank}", content=content, headers=headers)

    def do(self, lease: Lease) -> None:
        """Execute one lease as `behave` says."""
        match lease.task:
            case ModelSummaryTask():
                outcome: Any = MODEL_SUMMARY
            case ResumeTask():
                outcome = self.resume_check(lease)
            case TargetRehearsalTask():
                outcome = self.rehearse(lease.task)
            case TraceTask():
                outcome = self.trace(lease)
                if self.raw_trace is not None:
                    self.send_trace(lease, 0, self.raw_trace(lease)).raise_for_status()
            case TrialTask():
                outcome = self.behave(lease, lease.task)
        self.report(lease, outcome).raise_for_status()

    def work(self, at_most: int = 100) -> int:
        """Lease and report until there is no work; returns the number of runs."""
        for done in range(at_most):
            lease = self.lease()
            if lease is None:
                return done
            self.do(lease)
        raise AssertionError(f"still work after {at_most} runs")

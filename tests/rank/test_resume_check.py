"""Each backend saves, ends, and goes on in new processes with the losses of the run that was not interrupted.

One case of each way to store a state; the others with SHARDTUNE_TEST_LONG=1.
"""

import errno
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ResumeTask
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan
from shardtune.tuner.verdict.winner import resume_check
from shardtune.workers.agent import collect
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RanksEnd, RunLimits
from shardtune.workers.launchers.base import RankExit
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.training import checkpoint_folder
from shardtune.workers.trial_dir import TrialDir
from tests.rank.helpers import faulty_ranks
from tests.rank.helpers.workplaces import workplace
from tests.support.long_run import wide
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

pytestmark = pytest.mark.ranks

HOST = {"device": "cpu"}
EIGHT_BIT: dict[str, Any] = {
    "optimizer": "adamw-8bit",
    "model": LLAMA | {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 2},
}
ROUNDED: dict[str, Any] = {
    "optimizer": {"kind": "adamw-bf16", "lr": 1.25e-3},
    "precision": "bf16-true",
    "model": EIGHT_BIT["model"],
}
INTERLEAVED = {"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2}
PLAN = ResumePlan(fewest_steps=4, most_steps=6, steps_after=4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A worker's place with a real fork server."""
    with workplace(tmp_path_factory.mktemp("resume_check"), ranks=4) as made:
        yield made


@pytest.fixture
def run(place: Workplace) -> Callable[..., ResumeMeasurement | Failure]:
    """Run a restart task as the agent does; its checkpoint must be gone afterwards."""

    def run_tiny(strategy: dict[str, Any], **changes: Any) -> ResumeMeasurement | Failure:
        task = ResumeTask(trial=tiny_task(strategy, **changes), plan=PLAN)
        directory = TrialDir.create(place.work_dir, f"run-{uuid.uuid4().hex[:8]}", task, place.fingerprint, 0)
        attempted = run_attempt(place, task, lambda: directory, RunLimits(120, 60), lambda: None)
        assert attempted is not None and not (directory.path / "checkpoint").exists()
        result = attempted.result
        assert isinstance(result, ResumeMeasurement | Failure)
        return result

    return run_tiny


FSDP2: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 2}
PIPELINE = FSDP2 | {"dp_shard": 1, "pipeline_parallel": 2}


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        wide({"kind": "ddp"}, {"model": GPT2}, id="ddp"),
        wide({"kind": "zero", "stage": 1}, {}, id="zero-1"),
        pytest.param({"kind": "zero", "stage": 2, "offload_optimizer": HOST}, {}, id="zero-2 offload"),
        # Mixed: DeepSpeed's masters are tensors of their own, which the checkpoint must hold beside the weights.
        pytest.param({"kind": "zero", "stage": 3}, {"micro_batch": 2, "precision": "bf16-mixed"}, id="zero-3"),
        wide({"kind": "zero", "stage": 3, "offload_optimizer": HOST, "offload_param": HOST}, {}, id="zero-3 offload"),
        pytest.param({"kind": "fsdp1", "dp_shard": 2}, {"model": GPT2, "activation_checkpointing": "full"}, id="fsdp1"),
        pytest.param(FSDP2 | {"cpu_offload": True}, {"model": GPT2}, id="fsdp2 offload"),
        wide(FSDP2 | {"dp_replicate": 2}, {"ranks": 4, "context_parallel": 2}, id="hsdp, context"),
        wide(PIPELINE, {"model": GPT2, "micro_batch": 2}, id="pipeline"),
        pytest.param(PIPELINE | INTERLEAVED, {"micro_batch": 2}, id="pipeline, interleaved"),
        pytest.param(FSDP2 | {"expert_parallel": 2}, {"model": MIXTRAL | {"num_hidden_layers": 1}}, id="experts"),
        wide(
            FSDP2 | {"dp_shard": 4, "expert_parallel": 2},
            {"ranks": 4, "model": MIXTRAL | {"num_hidden_layers": 1}},
            id="experts, sharded",
        ),
        # Stored as parts of experts are: as distributed tensors.
        wide(
            FSDP2 | {"dp_shard": 1, "tensor_parallel": 2},
            {"model": LLAMA | {"num_hidden_layers": 1, "vocab_size": 2048}},
            id="tensor",
        ),
        pytest.param({"kind": "ddp"}, {"optimizer": "muon"}, id="ddp, muon"),
        pytest.param({"kind": "ddp"}, EIGHT_BIT, id="ddp, 8 bits"),
        wide({"kind": "zero", "stage": 3}, EIGHT_BIT | {"micro_batch": 2}, id="zero-3, 8 bits"),
        wide({"kind": "zero", "stage": 2}, EIGHT_BIT, id="zero-2, 8 bits"),
        # Float8 of a whole tensor keeps no state.
        wide(FSDP2, {"float8": "tensorwise", "precision": "bf16-mixed"}, id="fsdp2, float8"),
        # Its shards are tensors of torchao's, and the checkpoint has plain ones.
        pytest.param(FSDP2 | {"float8_gather": True}, {"float8": "tensorwise"}, id="fsdp2, float8 gathers"),
        wide(FSDP2, {"optimizer": "muon"}, id="fsdp2, muon"),
        pytest.param({"kind": "ddp"}, ROUNDED, id="ddp, stochastic rounding"),
        *(
            wide(strategy, ROUNDED, id=f"{strategy['kind']}, stochastic rounding")
            for strategy in (FSDP2, {"kind": "zero", "stage": 2}, {"kind": "fsdp1", "dp_shard": 2})
        ),
        # The loss scale is saved, too.
        *(
            wide(strategy, {"precision": "fp16-mixed"}, id=f"{name}, float16")
            for name, strategy in {
                "ddp": {"kind": "ddp"},
                "zero-2": {"kind": "zero", "stage": 2},
                "zero-3": {"kind": "zero", "stage": 3},
                "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
                "fsdp2": FSDP2,
            }.items()
        ),
    ],
)
def test_new_processes_go_on_where_the_checkpoint_was_saved(
    run: Callable[..., ResumeMeasurement], strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    measured = run(strategy, **changes)
    assert isinstance(measured, ResumeMeasurement), measured
    assert resume_check.resume_failure(measured, tiny_task(strategy, **changes).workload.precision) is None
    assert PLAN.fewest_steps <= measured.saved_at_step <= PLAN.most_steps
    assert len(measured.losses) == measured.saved_at_step + PLAN.steps_after
    assert measured.losses[-1] < measured.losses[0], "it trained"
    # Masters and both moments of 213,568 parameters (GPT-2: fewer) are 12 bytes each.
    assert measured.checkpoint_bytes > 2_000_000 and measured.save_s > 0 and measured.load_s > 0
    assert measured.disk is not None and measured.checkpoint_files and measured.ranks == measured.writing_ranks
    assert measured.allocator_retries is None and measured.allocator_ooms is None


ADAPTED: dict[str, Any] = {"adapter": {"kind": "lora", "rank": 4}, "micro_batch": 2}
QLORA: dict[str, Any] = {"adapter": {"kind": "lora", "rank": 4, "quantization": "nf4", "double_quantization": True}}
BUCKETS = {"reduce_bucket_size": 50_000}
ADAPTED |= {"model": LLAMA | {"vocab_size": 4096, "num_hidden_layers": 2}}


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        wide({"kind": "ddp"}, ADAPTED, id="ddp"),
        wide({"kind": "zero", "stage": 1, **BUCKETS}, ADAPTED, id="zero-1"),
        wide({"kind": "zero", "stage": 2, **BUCKETS}, ADAPTED, id="zero-2"),
        pytest.param({"kind": "zero", "stage": 3, **BUCKETS}, ADAPTED, id="zero-3"),
        wide({"kind": "zero", "stage": 3, **BUCKETS}, ADAPTED | {"precision": "bf16-mixed"}, id="zero-3, bf16"),
        # Stored as all of FSDP1's weights are, by torch's distributed checkpoint.
        wide({"kind": "fsdp1", "dp_shard": 2}, ADAPTED, id="fsdp1"),
        wide(FSDP2, ADAPTED, id="fsdp2"),
        pytest.param(FSDP2, ADAPTED | {"adapter": {"kind": "last_layers", "layers": 1}}, id="fsdp2, last layer"),
        pytest.param({"kind": "ddp"}, ADAPTED | QLORA, id="ddp, 4-bit weights"),
        wide({"kind": "zero", "stage": 2, **BUCKETS}, ADAPTED | QLORA, id="zero-2, 4-bit weights"),
        wide(FSDP2, ADAPTED | QLORA, id="fsdp2, 4-bit weights"),
        # Magnitudes are modules of their own within PEFT's layers.
        *(
            wide(strategy, ADAPTED | {"adapter": {"kind": "dora", "rank": 4}}, id=f"{name}, dora")
            for name, strategy in {
                "ddp": {"kind": "ddp"},
                "zero-3": {"kind": "zero", "stage": 3, **BUCKETS},
                "fsdp2": FSDP2,
            }.items()
        ),
    ],
)
def test_a_checkpoint_of_an_adapter_holds_it_alone_and_training_goes_on_from_it(
    run: Callable[..., ResumeMeasurement], strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Frozen weights are made again from the seed. They alone would be 2.4 MB; FSDP1's files have 0.8 MB of headers."""
    measured = run(strategy, **changes)
    assert isinstance(measured, ResumeMeasurement), measured
    assert resume_check.resume_failure(measured, tiny_task(strategy, **changes).workload.precision) is None
    assert measured.losses[-1] < measured.losses[0], "it trained"
    assert measured.checkpoint_bytes < 1_300_000


FAULTS = ("none", "forgotten_optimizer", "forgotten_weights")


@pytest.mark.parametrize("precision", [wide("fp32"), "bf16-mixed"])
def test_what_a_checkpoint_lacks_is_noticed(tmp_path: Path, precision: str) -> None:
    """Faults are noticed under both precisions: the bounds of bf16-mixed are wider, and must still tell.

    All go on from one checkpoint: they forget as they load.
    """
    task = ResumeTask(trial=tiny_task({"kind": "ddp"}, precision=precision), plan=PLAN)
    saved, folders = tmp_path / "saved", {fault: tmp_path / fault for fault in FAULTS}
    saved.mkdir()
    (saved / "task.json").write_text(task.model_dump_json())
    faulty_ranks.run_ranks("none", saved)
    for fault, folder in folders.items():
        shutil.copytree(saved, folder)
        faulty_ranks.run_ranks(fault, folder)
    actual = {fault: _judged(TrialDir(folder), task) for fault, folder in folders.items()}
    assert actual["none"] is None
    for fault in FAULTS[1:]:
        failure = actual[fault]
        assert failure is not None and failure.kind is FailureKind.NUMERICS and "in new processes" in failure.message


def _judged(directory: TrialDir, task: ResumeTask) -> Failure | None:
    ended = RanksEnd((RankExit(0, 0), RankExit(1, 0)), None, "", 0.0, 1.0)
    measured = collect.attempt_outcome(task, directory, ended, None)
    assert isinstance(measured, ResumeMeasurement), measured
    return resume_check.resume_failure(measured, task.trial.workload.precision)


def test_a_configuration_that_its_backend_rejects_is_a_failure_like_any_other(
    run: Callable[..., ResumeMeasurement | Failure],
) -> None:
    failure = run({"kind": "fsdp2", "dp_shard": 3})
    assert isinstance(failure, Failure) and failure.kind is FailureKind.ILLEGAL


def test_a_checkpoint_that_has_no_room_is_the_machines_fault_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"may take 953674.32 GiB, but .* GiB free; .*budget.resume_check"):
        checkpoint_folder.require_room(tmp_path, 1024 * 10**12)
    with pytest.raises(RuntimeError, match="another"), checkpoint_folder.full_disk_as_setup_error(tmp_path):
        raise RuntimeError("another")
    with pytest.raises(SetupError, match="ran full"), checkpoint_folder.full_disk_as_setup_error(tmp_path):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("PytorchStreamWriter failed") from error
    assert not tmp_path.exists(), "the report of the failure needs the room"

"""float8 on real ranks: every backend trains what one process trains with torchao, and nothing else passes for it."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.tuner.verdict import parity
from shardtune.workers.rank.classify import NumericsError, SetupError
from shardtune.workers.rank.model import build, float8
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.strategies.registry import TRAINERS
from shardtune.workers.rank.training.wrap import make_trainer
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import wide
from tests.support.ranks.reference_training import train
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

pytestmark = pytest.mark.ranks

MODEL = LLAMA | {"num_hidden_layers": 2}
DDP: dict[str, Any] = {"kind": "ddp"}
FSDP1: dict[str, Any] = {"kind": "fsdp1", "dp_shard": 2}
FSDP2: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 2}
ZERO_1: dict[str, Any] = {"kind": "zero", "stage": 1}
ZERO_2: dict[str, Any] = {"kind": "zero", "stage": 2}
FULL = {"activation_checkpointing": "full"}


def torchaos() -> Any:
    """Module of torchao's layers; importing it takes seconds, which each process of the tests would spend at its start."""
    return importlib.import_module("torchao.float8.float8_linear")


def task_of(strategy: dict[str, Any], **changes: Any) -> TrialTask:
    return tiny_task(
        strategy, **({"model": MODEL, "parity_steps": 4, "float8": "tensorwise", "micro_batch": 2} | changes)
    )


@pytest.fixture(scope="module")
def report_of(host: HostProcess) -> Callable[[TrialTask], RankReport]:
    """Report of rank 0 of a trial; equal tasks run once."""

    @functools.cache
    def of_text(text: str) -> RankReport:
        return host.run(TrialTask.model_validate_json(text))[0]

    return lambda task: of_text(task.model_dump_json())


def differences(task: TrialTask, trajectory: tuple[StepRecord, ...], reference: tuple[StepRecord, ...]) -> list[str]:
    """Figures that leave the reference by more than a study allows."""
    bounds = parity.tolerance(task.workload.precision, task.workload.optimizer, task.workload.float8)
    assert len(trajectory) == len(reference)
    reasons = (
        parity.step_difference(expected, actual, bounds.at_step(expected.step), "the reference")
        for expected, actual in zip(reference, trajectory, strict=True)
    )
    return [reason for reason in reasons if reason is not None]


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        pytest.param(DDP, {}, id="ddp"),
        pytest.param(FSDP1, {}, id="fsdp1"),
        wide(FSDP2, {}, id="fsdp2"),
        pytest.param(ZERO_2, {}, id="zero-2"),
        pytest.param(FSDP2, {"float8": "rowwise"}, id="fsdp2, rowwise"),
        pytest.param(DDP, {"precision": "bf16-mixed"}, id="ddp, bf16-mixed"),
        pytest.param(FSDP2, {"micro_batch": 2} | FULL, id="fsdp2, full checkpointing"),
        wide(ZERO_1, {}, id="zero-1"),
        wide(ZERO_2, {"float8": "rowwise", "micro_batch": 4}, id="zero-2, rowwise"),
        wide(DDP, {"activation_checkpointing": "selective"}, id="ddp, selective checkpointing"),
        wide(FSDP1, {"precision": "bf16-mixed"}, id="fsdp1, bf16-mixed"),
        wide(FSDP2, {"precision": "bf16-mixed"}, id="fsdp2, bf16-mixed"),
        wide(ZERO_2, {"precision": "bf16-mixed"}, id="zero-2, bf16-mixed"),
        wide(DDP, {"precision": "bf16-true"}, id="ddp, bf16-true"),
        wide(FSDP2, {"precision": "bf16-true"}, id="fsdp2, bf16-true"),
        wide(DDP, {"max_grad_norm": 0.1}, id="ddp, clipping that bites"),
    ],
)
def test_each_backend_trains_as_one_process_does(
    report_of: Callable[[TrialTask], RankReport], strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    task = task_of(strategy, **changes)
    report = report_of(task)
    assert report.status == "complete", report.failure
    assert differences(task, report.trajectory, train(task)) == []


def test_training_without_float8_is_told_from_training_with_it() -> None:
    """Float8 ignored in silence: the losses differ by 2e-5, so that the first step of fp32 alone shows it. GPUs train float8
    in bfloat16, where no loss shows it (see `require_converted`)."""
    task = task_of(DDP, parity_steps=2)
    ignored = train(task_of(DDP, float8=None, parity_steps=2))
    assert any("of step 0" in reason for reason in differences(task, ignored, train(task)))
    rowwise = task_of(DDP, float8="rowwise", parity_steps=2)
    assert differences(rowwise, train(task), train(rowwise))


def test_a_rank_that_scales_wrongly_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: gradients lose the scale with which they were cast."""
    task = task_of(DDP, seed=3, parity_steps=2)
    reference = train(task)
    float8_linear = torchaos()
    cast = float8_linear.hp_tensor_to_float8_dynamic

    def unscaled(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        operand = cast(tensor, *args, **options)
        if options["gemm_input_role"].name == "GRAD_OUTPUT":
            operand._scale = operand._scale * 1.1
        return operand

    monkeypatch.setattr(float8_linear, "hp_tensor_to_float8_dynamic", unscaled)
    wrong = train(task.model_copy(update={"plan": task.plan.model_copy(update={"parity_steps": 1})}))
    assert differences(task, wrong, reference[:1])


def test_weights_and_states_keep_their_bytes(report_of: Callable[[TrialTask], RankReport]) -> None:
    """float8 rounds operands alone: the peak of a rank is that of training without it."""
    with_float8, without = (report_of(task_of(DDP, float8=name)) for name in ("tensorwise", None))
    assert with_float8.memory is not None and without.memory is not None
    assert with_float8.memory.peak_allocated_gib == pytest.approx(without.memory.peak_allocated_gib, rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "changes", "words"),
    [
        (ZERO_2 | {"stage": 3}, {}, "strategy.stage (3)"),
        (DDP, {"model": MODEL | {"intermediate_size": 120}}, "mlp.gate_proj of the blocks has 64 and 120"),
        (
            DDP,
            {"model": MODEL | {"num_attention_heads": 8, "num_key_value_heads": 1}},
            "k_proj of the blocks has 64 and 8",
        ),
    ],
    ids=["zero-3", "widths", "heads"],
)
def test_what_float8_cannot_train_is_rejected_by_the_rank(
    host: HostProcess, strategy: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    report = host.run(task_of(strategy, **changes))[0]
    assert report.failure is not None and report.failure.kind is FailureKind.ILLEGAL
    assert words in report.failure.message


def test_only_linear_layers_of_blocks_are_converted_under_their_names() -> None:
    task = task_of(DDP)
    network = build.build(task.model, task.workload)
    names = [name for name, _ in network.named_parameters()]
    float8.convert(list(network.model.layers), "rowwise", torch.device("cpu"))  # type: ignore[union-attr, arg-type]
    converted = [name for name, module in network.named_modules() if isinstance(module, torchaos().Float8Linear)]
    assert len(converted) == 7 * MODEL["num_hidden_layers"] and all(".layers." in name for name in converted)
    assert [name for name, _ in network.named_parameters()] == names
    assert all(dataclasses.asdict(network.get_submodule(name).config)["emulate"] for name in converted)  # type: ignore[call-overload]


def test_a_backend_that_drops_float8_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a wrapper puts a linear layer of its own in place of a converted one."""

    def wrapper(model: Any, _setting: Any, _strategy: Any) -> str:
        if dropped:
            mlp = model.model.layers[1].mlp
            mlp.up_proj = torch.nn.Linear(mlp.up_proj.in_features, mlp.up_proj.out_features)
        return "trainer"

    task = task_of(DDP)
    context: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2)
    monkeypatch.setitem(TRAINERS, "ddp", wrapper)
    for dropped in (False, True):
        rejection = pytest.raises(
            NumericsError, match="the 14 linear layers of the repeated blocks, and 13 of them are"
        )
        with rejection if dropped else nullcontext():
            make_trainer(build.build(task.model, task.workload), TrainingSetup.of(task, context))


def test_blocks_that_are_linear_layers_themselves_are_rejected() -> None:
    """torchao does not replace them in place."""
    model = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(2)])
    layers = float8.convert(list(model), "tensorwise", torch.device("cpu"))
    with pytest.raises(
        NumericsError, match=r"\('tensorwise'\) converts the 2 linear layers .* and 0 of them are converted"
    ):
        float8.require_converted(model, "tensorwise", layers)


def test_a_missing_package_and_a_gpu_without_float8_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    block = torch.nn.Sequential(torch.nn.Linear(64, 64))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "A100")
    with pytest.raises(SetupError, match=r"needs compute capability 8\.9, and A100 has 8\.0; leave out float8"):
        float8.convert([block], "tensorwise", torch.device("cuda", 0))
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SetupError, match=r"needs torchao, which this worker lacks; install shardtune\[fp8\] there"):
        float8.convert([block], "tensorwise", torch.device("cpu"))
    assert float8.installed_recipes() == []
    with pytest.raises(ValueError, match="repeated blocks have none; leave out float8"):
        monkeypatch.undo()
        float8.convert([torch.nn.LayerNorm(64)], "tensorwise", torch.device("cpu"))

"""Calls of a script to its trial, without a worker."""

import pytest
import torch

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.workers import adapter


class Recorder:
    def __init__(self) -> None:
        self.losses: list[float] = []

    def config_for(self, backends: tuple[str, ...]) -> TrialConfig:
        return TrialConfig(strategy=DdpConfig())

    def prepare(self, model: torch.nn.Module) -> None:
        pass

    def report(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        self.losses.append(float(loss))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def trial_of(
    recorder: Recorder, config: TrialConfig | None = None, precision: str = "bf16-mixed"
) -> adapter.ScriptTrial:
    config = config or TrialConfig(strategy=DdpConfig())
    workload = Workload(sequence_length=8, global_batch=4, precision=PRECISIONS[precision])
    return adapter.ScriptTrial(recorder, config, workload, 2, {}, torch.device("cpu"))


def prepared(recorder: Recorder) -> adapter.ScriptTrial:
    trial = trial_of(recorder)
    trial.prepare(torch.nn.Linear(1, 1))
    return trial


def test_outside_of_a_worker_there_is_no_trial():
    assert not adapter.in_trial()
    with pytest.raises(adapter.AdapterError, match="--allow-script"):
        adapter.trial()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16-mixed", torch.float32), ("bf16-autocast", torch.bfloat16)]
)
def test_a_loop_of_ones_own_computes_under_the_precisions_autocast(recorder, precision, dtype):
    with trial_of(recorder, precision=precision).autocast():
        assert torch.nn.Linear(1, 1)(torch.ones(1, 1)).dtype == dtype


def test_losses_are_numbers_or_tensors_of_one_element(recorder):
    trial = prepared(recorder)
    for loss in (1.0, torch.tensor(2.0), torch.tensor([3.0], requires_grad=True)):
        trial.report(loss)
    assert recorder.losses == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ({"loss": torch.ones(2)}, "one number"),
        ({"loss": 1.0, "grad_norm": -0.5}, "must not be negative"),
        ({"loss": 1.0, "step": -1}, "step"),
    ],
)
def test_nonsense_is_rejected(recorder, report, says):
    with pytest.raises(adapter.AdapterError, match=says):
        prepared(recorder).report(**report)
    assert recorder.losses == []


def test_a_step_may_not_be_skipped_or_repeated(recorder):
    trial = prepared(recorder)
    trial.report(1.0, step=7)
    trial.report(1.0, step=8)
    for step in (8, 10):
        with pytest.raises(adapter.AdapterError, match=f"step \\({step}\\) was reported after step 8"):
            trial.report(1.0, step=step)


def test_the_model_comes_first_and_once(recorder):
    with pytest.raises(adapter.AdapterError, match="prepare"):
        trial_of(recorder).report(1.0)
    with pytest.raises(adapter.AdapterError, match="twice"):
        prepared(recorder).prepare(torch.nn.Linear(1, 1))


def test_sharding_that_a_library_ignores_on_cpu_is_rejected(recorder):
    with pytest.raises(adapter.Rejected, match="Accelerate silently ignores fsdp2 on CPU ranks"):
        trial_of(recorder, TrialConfig(strategy=Fsdp2Config(dp_shard=2))).require_ddp_on_cpu("Accelerate")


def test_a_model_in_another_dtype_than_states_below_float32_is_rejected(recorder):
    trial = trial_of(recorder, precision="bf16-true")
    with pytest.raises(adapter.AdapterError, match=r"weight is torch.float32.*\(bf16-true\).*dtype=torch.bfloat16"):
        trial.prepare(torch.nn.Linear(1, 1))
    trial_of(recorder, precision="bf16-true").prepare(torch.nn.Linear(1, 1, dtype=torch.bfloat16))

"""A model of own code whose step leaves parameters without a gradient: traced, and trained alike under each backend."""

from pathlib import Path

import pytest

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers import custom_model_rank
from tests.support.ranks.tiny_tasks import BACKENDS, tiny_task

pytestmark = pytest.mark.ranks

# A pooler whose output the loss does not use, as BERT has one.
CODE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, hidden):
        return hidden + self.linear(hidden).relu()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layers = nn.Embedding(512, 32), nn.ModuleList(Block() for _ in range(3))
        self.pooler, self.head = nn.Linear(32, 32), nn.Linear(32, 512)

    def forward(self, tokens):
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden), self.pooler(hidden[:, 0]).tanh()

def build_model(config, workload):
    return Model()

def make_batch(config, workload, step, samples, device):
    rows = torch.arange(workload.sequence_length).repeat(len(samples), 1)
    return (rows * 7 + 31 * step + torch.tensor(list(samples))[:, None]).remainder(512).to(device)

def loss(model, batch):
    logits, _ = model(batch)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
"""
OWN = ModelSpec(name="pooled", entry_point="pooled")
ALTERNATING_CODE = f"""{CODE}
CALLS = 0
plain_loss = loss

def loss(model, batch):
    global CALLS
    CALLS += 1
    _, pooled = model(batch)
    return plain_loss(model, batch) + (pooled.square().sum() if CALLS % 2 else 0.0)
"""
"""The pooler is used in the first and third of a step's four micro batches, and not in the last one."""
ALTERNATING = ModelSpec(name="alternating", entry_point="alternating")
STRATEGIES = {
    "ddp": {"kind": "ddp"},
    "views": {"kind": "ddp", "gradient_as_bucket_view": True},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}


def trial(strategy: dict[str, object], *, is_known: bool) -> TrialTask:
    task = tiny_task(strategy, parity_steps=4)
    return task.model_copy(update={"model": OWN, "leaves_parameters_unused": is_known})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trial directories after their runs, by what ran there."""
    root = tmp_path_factory.mktemp("unused")
    facts = root / "site" / "pooled_model-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pooled-model\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[shardtune.models]\npooled = pooled_model\nalternating = alternating_model\n"
    )
    (root / "site" / "pooled_model.py").write_text(CODE)
    (root / "site" / "alternating_model.py").write_text(ALTERNATING_CODE)
    tasks: dict[str, TrialTask | ModelSummaryTask] = {
        name: trial(strategy, is_known=True) for name, strategy in STRATEGIES.items()
    }
    tasks["unknown"] = trial(STRATEGIES["ddp"], is_known=False)
    for stage in (1, 2):
        tasks[f"alternating, stage {stage}"] = tiny_task(BACKENDS[f"zero-{stage}"], parity_steps=4).model_copy(
            update={"model": ALTERNATING}
        )
    tasks["alternating, no overlap"] = tiny_task(
        BACKENDS["zero-1"] | {"overlap_comm": False}, parity_steps=4
    ).model_copy(update={"model": ALTERNATING})
    tasks["summary"] = ModelSummaryTask(model=OWN, workload=tasks["unknown"].workload)
    created = {}
    for name, task in tasks.items():
        created[name] = root / name
        created[name].mkdir()
        (created[name] / "task.json").write_text(task.model_dump_json())
        custom_model_rank.run_ranks(created[name], root / "site")
    return created


def report(folder: Path) -> RankReport:
    return RankReport.model_validate_json((folder / "rank_0.json").read_text())


def test_a_trace_counts_the_parameters_without_a_gradient(folders: dict[str, Path]) -> None:
    summary = ModelSummary.model_validate_json((folders["summary"] / "model_summary.json").read_text())
    assert summary.step_trace is not None, summary.trace_failure
    # The pooler's weight and bias.
    assert summary.step_trace.unused_parameters == 2 and summary.leaves_parameters_unused


@pytest.mark.parametrize("name", ["ddp", "views"])
def test_ddp_trains_them_as_fsdp2_does(folders: dict[str, Path], name: str) -> None:
    expected, actual = report(folders["fsdp2"]), report(folders[name])
    assert actual.failure is None and expected.failure is None, (actual.failure, expected.failure)
    assert actual.trajectory and expected.trajectory
    for one, other in zip(actual.trajectory, expected.trajectory, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)


def test_a_step_that_could_not_be_traced_says_what_to_do(folders: dict[str, Path]) -> None:
    failure = report(folders["unknown"]).failure
    assert failure is not None and failure.kind is FailureKind.ILLEGAL
    assert "requires_grad=False" in failure.message and "space.backends" in failure.message


def test_zero_1_rejects_a_gradient_that_only_earlier_micro_batches_give(folders: dict[str, Path]) -> None:
    failure = report(folders["alternating, stage 1"]).failure
    assert failure is not None and failure.kind is FailureKind.ILLEGAL
    assert "pooler.bias" in failure.message and "space.knobs.stage" in failure.message
    # Stage 2 reduces in every micro batch.
    assert report(folders["alternating, stage 2"]).failure is None


def test_zero_1_without_overlap_averages_what_only_earlier_micro_batches_give(folders: dict[str, Path]) -> None:
    expected, actual = report(folders["alternating, stage 2"]), report(folders["alternating, no overlap"])
    assert actual.failure is None, actual.failure
    assert actual.trajectory and expected.trajectory
    for one, other in zip(actual.trajectory, expected.trajectory, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)

"""Exports that launch.sh starts: the script under torchrun, DeepSpeed's JSON, Accelerate's DDP."""

from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from tests.conformance.exports_train.exported_scripts import export, launch, train, train_launched

pytestmark = pytest.mark.ranks
ACCELERATE_SCRIPT = """
import os
import sys
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(4, 4)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for micro in range(accelerator.gradient_accumulation_steps):
    with accelerator.accumulate(model):
        inputs = torch.ones(2, 4, device=accelerator.device) * (accelerator.process_index + 1)
        accelerator.backward(model(inputs).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()
weight = accelerator.unwrap_model(model).weight
spread = (accelerator.gather(weight.detach().sum()[None]).std()).item()
facts = accelerator.distributed_type, accelerator.num_processes, accelerator.mixed_precision, type(model).__name__, spread
sys.stdout.write(" ".join(str(fact) for fact in facts) + "\\n")  # in one piece: both ranks write to one pipe
sys.stdout.flush()
accelerator.wait_for_everyone()
os._exit(0)  # gloo's threads still alive while the interpreter winds down can abort the process
"""


def test_ddp_and_zero_2_scripts_train_the_same(tmp_path: Path) -> None:
    """Equal seeds, equal made-up tokens: what differs is only the strategy, with DeepSpeed's JSON read by DeepSpeed."""
    results = []
    for strategy, start in ((DdpConfig(gradient_as_bucket_view=True), train_launched), (ZeroConfig(stage=2), train)):
        folder = tmp_path / strategy.kind
        folder.mkdir()
        results.append(start(export(folder, TrialConfig(strategy=strategy, micro_batch=2))))
    assert results[0] == [pytest.approx(step, rel=2e-4) for step in results[1]]


def test_accelerate_trains_ddp_with_the_exported_file(tmp_path: Path) -> None:
    """bf16-mixed, because the file must name it; a layer of four by four."""
    export(tmp_path, TrialConfig(strategy=DdpConfig(), micro_batch=2), precision="bf16-mixed")
    (tmp_path / "train.py").write_text(ACCELERATE_SCRIPT)
    done = launch(tmp_path, "accelerate", str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("DistributedType.MULTI_CPU 2 bf16 DistributedDataParallel 0.0") == 2


@pytest.mark.parametrize("strategy", [Fsdp2Config(dp_shard=2), ZeroConfig(stage=2)], ids=["fsdp2", "zero"])
def test_accelerate_is_rejected_where_it_would_ignore_the_strategy(
    tmp_path: Path, strategy: Fsdp2Config | ZeroConfig
) -> None:
    export(tmp_path, TrialConfig(strategy=strategy))
    rejected = launch(tmp_path, "accelerate", "train.py")
    assert rejected.returncode == 2
    assert "on CPU ranks" in rejected.stderr

"""What exported files say about the optimizer."""

import re
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.optimizers import AdamW8bit, AdamWBf16
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer import training_arguments
from tests.support.values.synthetic_studies import contender_of, study_of, with_muon, with_optimizer


def source(strategy: Any, model: str = "llama-tiny") -> ExportSource:
    study = with_muon(study_of(model=model))
    return ExportSource.of(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))


@pytest.mark.parametrize("renderer", [torchtitan, training_arguments], ids=lambda module: module.RELEASE)
def test_a_program_without_muon_says_that_it_trains_with_adamw(renderer: Any) -> None:
    rendered = renderer.render(source(DdpConfig()))
    assert any(line.startswith("optimizer: Muon was measured") and "AdamW" in line for line in rendered.lossy)


def test_trainer_has_8_bit_adamw_by_name_and_torchtitan_has_not() -> None:
    low = ExportSource.of(
        with_optimizer(study_of(), AdamW8bit()), contender_of(TrialConfig(strategy=DdpConfig(), micro_batch=2))
    )
    exported = training_arguments.render(low)
    assert '"adamw_bnb_8bit"' in exported.files["training_arguments.json"] and not any(
        "8-bit" in line for line in exported.lossy
    )
    assert any("float32 moments of embeddings" in line for line in exported.lossy)
    assert any(line.startswith("optimizer: 8-bit AdamW was measured") for line in torchtitan.render(low).lossy)
    assert "eight_bit_adamw(self.parameters)" in snippet.source(low)


def rounded(strategy: Any) -> ExportSource:
    study = with_optimizer(study_of(precision="bf16-true"), AdamWBf16())
    return ExportSource.of(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))


@pytest.mark.parametrize(
    ("strategy", "made"),
    [
        (DdpConfig(), "StochasticAdamW(self.parameters)"),
        (Fsdp2Config(dp_shard=2), "StochasticAdamW(self.parameters)"),
        (Fsdp1Config(dp_shard=2), "StochasticAdamW(self.model.parameters(), self.model.process_group.rank())"),
        (ZeroConfig(stage=3), "StochasticAdamW(parameters, dist.get_rank())"),
    ],
    ids=["ddp", "fsdp2", "fsdp1", "zero"],
)
def test_the_script_rounds_by_chance_with_equal_numbers_on_replicas(strategy: Any, made: str) -> None:
    text = snippet.source(rounded(strategy))
    compile(text, "train_snippet.py", "exec")
    assert f"optimizer = {made}\n" in text and "class StochasticAdamW(torch.optim.Optimizer):" in text


@pytest.mark.parametrize("renderer", [torchtitan, training_arguments], ids=lambda module: module.RELEASE)
def test_a_program_without_stochastic_rounding_says_so(renderer: Any) -> None:
    lossy = renderer.render(rounded(DdpConfig())).lossy
    assert any(line.startswith("optimizer: AdamW with stochastic rounding was measured") for line in lossy)


def test_a_program_that_leaves_the_optimizer_to_its_user_says_so() -> None:
    note = "optimizer: make Muon in"
    assert any(line.startswith(note) for line in lightning.render(source(DdpConfig())).lossy)
    assert note in accelerate.document(source(DdpConfig()))


def test_adamw_too_is_said_with_its_numbers_and_its_fused_kernel() -> None:
    """torch's defaults are others (betas, weight decay), and its AdamW is not fused unless it is told to."""
    zero = ZeroConfig(stage=2, offload_optimizer=Offload())
    whole, offloaded = (ExportSource.of(study_of(), contender_of(TrialConfig(strategy=s))) for s in (DdpConfig(), zero))
    numbers = "lr=0.0003, betas=(0.9, 0.95), eps=1e-08, weight_decay=0.1"
    call = f"optimizer: make torch.optim.AdamW(…, {numbers}, fused=True) in"
    assert f"{call} your module" in lightning.render(whole).lossy
    # Accelerate makes DeepSpeed's optimizer of torch's, and only of torch's one that decays apart.
    assert all(f"{call} your script" in accelerate.document(item) for item in (whole, offloaded))
    host = f"optimizer: make deepspeed.ops.adam.DeepSpeedCPUAdam(…, {numbers}, adamw_mode=True) in your module"
    assert host in lightning.render(offloaded).lossy


@pytest.mark.parametrize(
    ("strategy", "model", "blocks"),
    [
        (DdpConfig(), "llama-tiny", "model.get_submodule(BLOCKS)"),
        (Fsdp2Config(dp_shard=2), "llama-tiny", "blocks"),
        (Fsdp2Config(dp_shard=1, pipeline_parallel=2), "llama-tiny", "[block for _, _, blocks, _ in parts"),
    ],
    ids=["ddp", "fsdp2", "pipeline"],
)
def test_the_script_gives_muon_the_matrices_of_all_blocks(strategy: Any, model: str, blocks: str) -> None:
    text = snippet.source(source(strategy, model))
    compile(text, "train_snippet.py", "exec")
    assert f"MuonAndAdamW(self.parameters, {blocks}" in text
    assert re.search(r"^BLOCKS = ", text, re.M)


def test_adamw_of_divided_experts_takes_groups_by_mesh() -> None:
    text = snippet.source(source(Fsdp2Config(dp_shard=2, expert_parallel=2), "mixtral-tiny"))
    assert 'torch.optim.AdamW([{"params": part} for part in by_mesh(others)], fused=True' in text

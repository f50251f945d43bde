"""Exported scripts that save memory train as those that do not: loss in chunks, inputs in host memory, MLPs in slices, fewer
results of selective checkpointing."""

from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from tests.conformance.exports_train.exported_scripts import export, train
from tests.support.long_run import IS_LONG, wide

pytestmark = pytest.mark.ranks


def test_a_script_with_a_loss_in_chunks_trains_as_one_of_all_logits(tmp_path: Path) -> None:
    """Chunks of 40 tokens, the last shorter; in the long run, and in tests/rank/test_chunked_loss.py, also on two ranks
    that each have a part of the vocabulary, and in compiled chunks."""
    split = Fsdp2Config(dp_shard=1, tensor_parallel=2)
    for name, strategy in (("ddp", DdpConfig()), *([("tensor", split)] if IS_LONG else [])):
        results = []
        chunks = {"loss": "chunked", "loss_chunk": 40}
        for loss in ({}, chunks, *([chunks | {"loss_compile": True}] if IS_LONG else [])):
            folder = tmp_path / f"{name}-{len(loss)}"
            folder.mkdir()
            config = TrialConfig.model_validate({"strategy": strategy, "micro_batch": 2, **loss})
            results.append(train(export(folder, config)))
        for chunked in results[1:]:
            assert results[0] == [pytest.approx(step, rel=2e-4) for step in chunked], name


@pytest.mark.parametrize("strategy", [DdpConfig(), wide(ZeroConfig(stage=3))], ids=["ddp", "zero-3"])
def test_a_script_with_inputs_in_host_memory_trains_as_one_with_inputs_on_the_device(
    tmp_path: Path, strategy: DdpConfig | ZeroConfig
) -> None:
    results = []
    for offloads in (False, True):
        folder = tmp_path / str(offloads)
        folder.mkdir()
        config = TrialConfig(
            strategy=strategy, micro_batch=2, activation_checkpointing="full", activation_offload=offloads
        )
        results.append(train(export(folder, config)))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [(DdpConfig(), "full"), wide(Fsdp2Config(dp_shard=2), "selective"), wide(ZeroConfig(stage=3), "full")],
    ids=["ddp", "fsdp2", "zero-3"],
)
def test_a_script_with_mlps_in_slices_trains_as_one_with_whole_mlps(
    tmp_path: Path, strategy: DdpConfig | Fsdp2Config | ZeroConfig, mode: str
) -> None:
    results = []
    for slices in (1, 4):
        folder = tmp_path / str(slices)
        folder.mkdir()
        config = TrialConfig.model_validate(
            {"strategy": strategy, "micro_batch": 2, "activation_checkpointing": mode, "mlp_slices": slices}
        )
        results.append(train(export(folder, config)))
    assert results[0] == [pytest.approx(step, rel=2e-4) for step in results[1]]


@pytest.mark.parametrize(
    ("strategy", "keeps"),
    [
        (DdpConfig(), "second_products"),
        (Fsdp2Config(dp_shard=2), "attention"),
        wide(ZeroConfig(stage=2), "second_products"),
        wide(Fsdp1Config(dp_shard=2), "second_products"),
    ],
    ids=["ddp", "fsdp2", "zero-2", "fsdp1"],
)
def test_a_script_that_keeps_fewer_results_trains_as_one_that_keeps_all(
    tmp_path: Path, strategy: DdpConfig | Fsdp1Config | Fsdp2Config | ZeroConfig, keeps: str
) -> None:
    results = []
    for choice in ("products", keeps):
        folder = tmp_path / choice
        folder.mkdir()
        fields = {"strategy": strategy, "activation_checkpointing": "selective", "selective_keeps": choice}
        results.append(train(export(folder, TrialConfig.model_validate(fields | {"micro_batch": 2}))))
    assert results[0] == results[1]

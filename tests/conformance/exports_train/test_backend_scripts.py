"""Exported scripts of each backend do train, with its knobs and with ranks that share samples."""

import math
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from tests.conformance.exports_train.exported_scripts import export, train
from tests.support.long_run import wide
from tests.support.ranks.torch_features import OWN_REDUCE_SCATTER
from tests.support.values.synthetic_studies import (
    CPU,
    study_of,
)

pytestmark = pytest.mark.ranks

INTERLEAVED: dict[str, Any] = {"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2}
IN_A_V: dict[str, Any] = {"pipeline_schedule": "zbv_zero_bubble", "pipeline_virtual_stages": 2}
IN_A_V |= {"reshard_after_forward": False, "grad_sync": "last"}


def test_ranks_that_share_samples_train_as_one_does(tmp_path: Path) -> None:
    """Two launches on equal made-up tokens: a group of two ranks, and a single rank. Each prints the loss of what it
    trains."""
    norms = []
    for ranks, strategy in ((1, DdpConfig()), (2, ZeroConfig(stage=2))):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        config = TrialConfig(strategy=strategy, micro_batch=2, context_parallel=ranks)
        export(folder, config, cluster=CPU.model_copy(update={"gpus_per_node": ranks}))
        norms.append([norm for _, norm in train(folder, ranks)])
    assert norms[0] == [pytest.approx(norm, rel=2e-3) for norm in norms[1]]


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (
            "gpt2-tiny",
            TrialConfig(
                strategy=Fsdp2Config(
                    dp_shard=2,
                    blocks_per_unit=2,
                    forward_prefetch=1,
                    backward_prefetch=2,
                    grad_sync="last",
                    **OWN_REDUCE_SCATTER,
                ),
                micro_batch=2,
                activation_checkpointing="selective",
            ),
        ),
        (
            "mixtral-tiny",
            TrialConfig(
                strategy=ZeroConfig(stage=3, offload_optimizer=Offload(pin_memory=False)),
                micro_batch=2,
                activation_checkpointing="full",
            ),
        ),
        ("llama-tiny", TrialConfig(strategy=DdpConfig(), micro_batch=2, activation_checkpointing="full")),
        (
            "llama-tiny",
            TrialConfig(
                strategy=Fsdp2Config(dp_shard=1, tensor_parallel=2), micro_batch=4, activation_checkpointing="full"
            ),
        ),
        wide(
            "gpt2-tiny",
            TrialConfig(
                strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2), micro_batch=2, activation_checkpointing="full"
            ),
        ),
        (
            "llama-tiny",
            TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2, **INTERLEAVED), micro_batch=2),
        ),
        wide("gpt2-tiny", TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2, **IN_A_V), micro_batch=2)),
        (
            "mixtral-tiny",
            TrialConfig(
                strategy=Fsdp2Config(dp_shard=2, expert_parallel=2, forward_prefetch=1, blocks_per_unit=2),
                micro_batch=2,
                activation_checkpointing="selective",
            ),
        ),
        (
            "gpt2-tiny",
            TrialConfig(
                strategy=Fsdp1Config(dp_shard=2, sharding_strategy="SHARD_GRAD_OP", backward_prefetch=None),
                micro_batch=2,
                activation_checkpointing="selective",
            ),
        ),
    ],
    ids=[
        "fsdp2",
        "zero-3",
        "ddp",
        "fsdp2, tensor",
        "fsdp2, pipeline",
        "fsdp2, interleaved",
        "fsdp2, in a V",
        "fsdp2, experts",
        "fsdp1",
    ],
)
def test_scripts_train_in_mixed_precision(tmp_path: Path, model: str, config: TrialConfig) -> None:
    """bf16-mixed, because that is what the scripts write casts for; two steps."""
    vocabulary = study_of(model).spec.model.config["vocab_size"]
    assert isinstance(vocabulary, int)
    loss, norm = train(export(tmp_path, config, model=model, precision="bf16-mixed"))[0]
    # Random weights and uniform tokens: the loss is that of guessing.
    assert loss == pytest.approx(math.log(vocabulary), rel=0.02)
    assert norm > 0

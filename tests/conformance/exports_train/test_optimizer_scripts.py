"""Exported scripts with another optimizer than AdamW do train."""

import math
from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.optimizers import AdamW, AdamW8bit, AdamWBf16
from shardtune.tuner.export import files
from tests.conformance.exports_train.exported_scripts import train
from tests.support.long_run import IS_LONG
from tests.support.values.synthetic_studies import (
    contender_of,
    study_of,
    with_muon,
    with_optimizer,
)

pytestmark = pytest.mark.ranks
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def test_scripts_with_muon_train(tmp_path: Path) -> None:
    """DDP's script begins with the weights of AdamW's; FSDP2 (in the long run) draws others on each shard, so its losses
    must be finite."""
    results, plain = [], study_of()
    # Muon's iterations in emulated bfloat16 take a minute of a core with llama-tiny's matrices.
    small = plain.spec.model.model_copy(update={"config": plain.spec.model.config | SMALL})
    plain = plain.model_copy(update={"spec": plain.spec.model_copy(update={"model": small})})
    fsdp2 = (("fsdp2", with_muon(plain), Fsdp2Config(dp_shard=2)),) if IS_LONG else ()
    for name, study, strategy in (
        ("adamw", plain, DdpConfig()),
        ("ddp", with_muon(plain), DdpConfig()),
        *fsdp2,
    ):
        folder = tmp_path / name
        folder.mkdir()
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results.append(train(folder))
    adamw, ddp, *drawn = results
    assert ddp[0] == pytest.approx(adamw[0], rel=2e-4) and ddp[-1] != pytest.approx(adamw[-1], rel=2e-4)
    assert all(math.isfinite(value) for steps in drawn for step in steps for value in step)


def test_scripts_with_8_bit_adamw_train_the_same(tmp_path: Path) -> None:
    results, plain = [], study_of()
    low = with_optimizer(plain, AdamW8bit(lr=1e-3))
    for name, study, strategy in (
        ("adamw", with_optimizer(plain, AdamW(lr=1e-3)), DdpConfig()),
        ("ddp", low, DdpConfig()),
        ("zero", low, ZeroConfig(stage=2)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results.append(train(folder))
    adamw, ddp, zero = results
    assert ddp[0] == pytest.approx(adamw[0], rel=1e-5)
    assert zero == [pytest.approx(step, rel=2e-3) for step in ddp]


def test_scripts_with_stochastic_rounding_train_the_same(tmp_path: Path) -> None:
    """Each backend draws random numbers of its own. FSDP1 and FSDP2 begin with other weights, so that their losses must be
    finite."""
    results, study = {}, with_optimizer(study_of(precision="bf16-true"), AdamWBf16(lr=1e-3))
    others = {"fsdp1": Fsdp1Config(dp_shard=2), "fsdp2": Fsdp2Config(dp_shard=2)} if IS_LONG else {}
    for name, strategy in ({"ddp": DdpConfig(), "zero": ZeroConfig(stage=2)} | others).items():
        folder = tmp_path / name
        folder.mkdir()
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results[name] = train(folder)
    assert results["zero"] == [pytest.approx(step, rel=1e-2) for step in results["ddp"]]
    assert all(math.isfinite(value) for name in others for step in results[name] for value in step)

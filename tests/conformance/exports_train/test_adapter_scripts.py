"""Exported scripts that train adapters do train: 4-bit weights and DoRA."""

import math
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.export import files
from tests.conformance.exports_train.exported_scripts import train
from tests.support.long_run import IS_LONG, wide
from tests.support.values.synthetic_studies import (
    contender_of,
    study_of,
    with_adapter,
)

pytestmark = pytest.mark.ranks


def test_scripts_with_4_bit_weights_train(tmp_path: Path) -> None:
    """DDP's and ZeRO's begin with the same bits; FSDP2 (in the long run) draws its blocks first, so its losses must be
    finite."""
    adapter = {"rank": 4, "quantization": "nf4", "double_quantization": True}
    study, results = with_adapter(study_of(), adapter), []
    for strategy in (DdpConfig(), ZeroConfig(stage=2), *([Fsdp2Config(dp_shard=2)] if IS_LONG else [])):
        folder = tmp_path / strategy.kind
        folder.mkdir()
        for file, text in files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2))).items():
            (folder / file).write_text(text)
        results.append(train(folder))
    ddp, zero, *drawn = results
    assert ddp == [pytest.approx(step, rel=2e-4) for step in zero]
    assert all(math.isfinite(value) for steps in drawn for step in steps for value in step)


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        pytest.param("llama-tiny", Fsdp2Config(dp_shard=2), id="fsdp2"),
        wide("gpt2-tiny", Fsdp2Config(dp_shard=2), id="fsdp2, Conv1D"),
        wide("llama-tiny", ZeroConfig(stage=3), id="zero-3"),
        wide("gpt2-tiny", DdpConfig(), id="ddp, Conv1D"),
    ],
)
def test_a_script_with_dora_begins_as_with_lora(tmp_path: Path, model: str, strategy: Any) -> None:
    """Both begin with the model's own outputs, if the magnitudes are the lengths of the rows that were drawn."""
    first = []
    for dora in (False, True):
        folder = tmp_path / str(dora)
        folder.mkdir()
        study = with_adapter(study_of(model, "fp32"), {"rank": 4, "dora": dora})
        for file, text in files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2))).items():
            (folder / file).write_text(text)
        first.append(train(folder)[0][0])
    assert first[1] == pytest.approx(first[0], rel=1e-5)

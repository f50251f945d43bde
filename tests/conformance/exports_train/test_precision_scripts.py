"""Exported scripts in another precision than bf16-mixed do train."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.export import files
from tests.conformance.exports_train.exported_scripts import export, train
from tests.support.long_run import wide
from tests.support.processes import preloaded_forks
from tests.support.values.synthetic_studies import (
    contender_of,
    study_of,
    with_float8,
)

pytestmark = pytest.mark.ranks


def test_scripts_in_bfloat16_throughout_train_the_same(tmp_path: Path) -> None:
    """Weights of one initialisation in bfloat16, whose states DeepSpeed keeps by its switches."""
    results = []
    for strategy in (DdpConfig(), ZeroConfig(stage=2)):
        folder = tmp_path / strategy.kind
        folder.mkdir()
        config = TrialConfig(strategy=strategy, micro_batch=2)
        results.append(train(export(folder, config, precision="bf16-true")))
    assert results[0] == [pytest.approx(step, rel=1e-2) for step in results[1]]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((Fsdp1Config(dp_shard=2),), id="fsdp1"),
        wide((DdpConfig(), Fsdp2Config(dp_shard=2), ZeroConfig(stage=2), ZeroConfig(stage=3)), id="others"),
    ],
)
def test_scripts_in_float16_train(tmp_path: Path, others: tuple[Any, ...]) -> None:
    """Their first steps may overflow, which updates nothing; once the scale fits, norms are finite and the loss falls."""
    for strategy in others:
        folder = tmp_path / f"{strategy.kind}-{getattr(strategy, 'stage', 0)}"
        folder.mkdir()
        config = TrialConfig(strategy=strategy, micro_batch=2)
        program = export(folder, config, precision="fp16-mixed") / "train_snippet.py", "--steps", "8"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        printed = preloaded_forks.ranks(preloaded_forks.script, *program, logs=folder, environment=environment)[0]
        steps = [(float(loss), float(norm)) for loss, norm in re.findall(r"loss (\S+), gradient norm (\S+),", printed)]
        assert len(steps) == 8 and all(math.isfinite(loss) for loss, _ in steps), printed
        assert math.isfinite(steps[-1][1]) and sum(math.isfinite(norm) for _, norm in steps) >= 2, printed


def test_scripts_in_float8_train_the_same(tmp_path: Path) -> None:
    """The first losses of float8 differ from those without it by its rounding, and agree between backends."""
    results = []
    for name, recipe, strategy in (
        ("plain", None, DdpConfig()),
        ("ddp", "rowwise", DdpConfig()),
        ("zero", "rowwise", ZeroConfig(stage=2)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        study = with_float8(study_of(), recipe)
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results.append(train(folder))
    plain, ddp, zero = results
    assert ddp[0] != pytest.approx(plain[0], rel=1e-6) and ddp[0] == pytest.approx(plain[0], rel=2e-2)
    assert zero[0] == pytest.approx(ddp[0], rel=1e-4) and zero[1] == pytest.approx(ddp[1], rel=3e-2)


def test_a_script_that_gathers_in_float8_trains_as_without(tmp_path: Path) -> None:
    """Its weights are cast by the same scales, before the gather instead of after it."""
    results = []
    for gathers in (False, True):
        folder = tmp_path / f"{gathers}"
        folder.mkdir()
        config = TrialConfig(strategy=Fsdp2Config(dp_shard=2, float8_gather=gathers), micro_batch=2)
        for file, text in files(with_float8(study_of(), "tensorwise"), contender_of(config)).items():
            (folder / file).write_text(text)
        results.append(train(folder))
    assert len(results[0]) > 1 and results[1] == [pytest.approx(step, rel=1e-5) for step in results[0]]

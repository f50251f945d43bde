"""A script with a budget of activations trains as one whose blocks are not compiled, on 2 CPU ranks.

Without SHARDTUNE_TEST_LONG=1 its blocks are compiled without inductor's kernels, which take 40 s of a core.
"""

import re
from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.tuner.export import files
from tests.support.long_run import IS_LONG, wide
from tests.support.processes import preloaded_forks
from tests.support.values.synthetic_studies import contender_of, study_of

pytestmark = pytest.mark.ranks

_PARTITION_ALONE = "aot_eager_decomp_partition"
_STEP = re.compile(r"step (\d+): loss ([\d.]+), gradient norm ([\d.]+)")


def _train(folder: Path, config: TrialConfig) -> list[tuple[float, float]]:
    """Loss and gradient norm of two steps of the exported script."""
    folder.mkdir()
    for name, text in files(study_of(), contender_of(config)).items():
        compiled = text if IS_LONG else text.replace("block.compile()", f'block.compile(backend="{_PARTITION_ALONE}")')
        (folder / name).write_text(compiled)
    environment = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    program = folder / "train_snippet.py", "--steps", "2"
    printed = preloaded_forks.ranks(preloaded_forks.script, *program, logs=folder, environment=environment)
    steps = [(float(loss), float(norm)) for _, loss, norm in _STEP.findall(printed[0])]
    assert len(steps) == 2, printed[0]
    return steps


@pytest.mark.parametrize("strategy", [DdpConfig(), wide(Fsdp2Config(dp_shard=2))], ids=["ddp", "fsdp2"])
def test_a_script_with_a_budget_trains_as_one_with_uncompiled_blocks(
    tmp_path: Path, strategy: DdpConfig | Fsdp2Config
) -> None:
    limited = TrialConfig(strategy=strategy, micro_batch=2, compile=True, activation_memory_budget=0.5)
    whole = _train(tmp_path / "whole", limited.without_compile())
    assert _train(tmp_path / "limited", limited) == [pytest.approx(step, rel=2e-4) for step in whole]

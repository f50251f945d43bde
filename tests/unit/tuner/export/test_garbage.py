"""Exports collect Python's garbage as the trial did, or say that their program cannot."""

import ast

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer import training_arguments
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import cpu, gpus, llama


def source_of(gc_every: int, cluster: Cluster) -> ExportSource:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=2), gc_every=gc_every)
    return ExportSource(study_of("llama-tiny", "fp32", cluster, 8), contender_of(config), llama("llama-tiny"))


@pytest.mark.parametrize("cluster", [cpu(2), gpus(1, 2)], ids=["cpu", "gpu"])
def test_the_script_collects_after_the_same_steps(cluster: Cluster) -> None:
    script = snippet.source(source_of(50, cluster))
    ast.parse(script)
    assert "\nimport gc\n" in script
    assert "    gc.disable()\n" in script
    assert "        if (step + 1) % 50 == 0:\n            gc.collect(1)\n" in script
    assert "gc." not in snippet.source(source_of(0, cluster))


def test_torchtitan_has_a_field_for_it_and_no_automatic_collection() -> None:
    stated, automatic = (torchtitan.render(source_of(steps, gpus(1, 2))) for steps in (20, 0))
    assert "gc_freq=20," in stated.files["torchtitan_config.py"]
    assert not any(line.startswith("gc_every") for line in stated.lossy)
    assert "gc_every: 0 was measured; torchtitan has 50" in automatic.lossy


@pytest.mark.parametrize("program", [training_arguments, lightning])
def test_programs_without_it_list_it_with_the_reason(program: object) -> None:
    lossy = program.render(source_of(50, gpus(1, 2))).lossy  # type: ignore[attr-defined]
    (line,) = (line for line in lossy if line.startswith("gc_every: 50 was measured; "))
    assert line.endswith(" has 0, as it has no setting for it")


def test_accelerate_says_that_it_lacks_it() -> None:
    text = accelerate.document(source_of(50, gpus(1, 2)))
    assert "gc_every=50 cannot be expressed in Accelerate, which has no setting for it: see train_snippet.py" in text

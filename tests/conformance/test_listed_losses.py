"""The list of what an export loses names each knob that its consumer cannot express, for every backend and format."""

from collections.abc import Iterator
from functools import cache

import pytest

from shardtune.api_schemas.knobs import Consumer, Lost
from shardtune.api_schemas.knobs.declarations import knobs_by_field
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.tuner.export import bundle, export
from shardtune.tuner.search.space.backends.registry import BACKENDS
from tests.conformance.random_configs import Drawn, drawn
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

DRAWS = 2
"""Number of configurations drawn for each cluster; each comes with a copy for every other value of a knob."""
CONSUMERS: dict[ExportFormat, Consumer] = {
    "standard": "accelerate",
    "training-arguments": "training_arguments",
    "torchtitan": "torchtitan",
    "lightning": "lightning",
}
"""Program whose declarations say what a format loses. Fine-tuning tools lose what the configuration that they run says."""
EIGHT = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)


def values_of(config: TrialConfig) -> dict[str, object]:
    """Values of a configuration's fields, its strategy's among them."""
    return {**dict(config.strategy), **dict(config), "strategy": None}


def lost_knobs(config: TrialConfig, exported: Export) -> set[str]:
    """Knobs that a format's consumer cannot express at their value, or trains with another one."""
    measured = values_of(config)
    consumer = CONSUMERS.get(exported.format)
    declared = {
        field
        for part in (config, config.strategy)
        for field, knob in knobs_by_field(type(part)).items()
        if consumer is not None
        and isinstance(lost := knob.exports.get(consumer), Lost)
        and measured[field] != (knob.default if lost.runs is None else lost.runs)
    }
    if exported.lossy_config is None or exported.lossy_config.backend != config.backend:
        return declared
    run = values_of(exported.lossy_config)
    return declared | {field for field in measured if measured[field] != run.get(field)}


@cache
def samples(kind: str) -> tuple[Drawn, ...]:
    """Configurations of a backend, drawn once for all formats."""
    return tuple(drawn(kind, BACKENDS[kind], None, DRAWS))


def unlisted(kind: str, form: ExportFormat) -> Iterator[str]:
    """Lost knobs that the list of losses does not name, with their value."""
    for sample in samples(kind):
        for config in (sample.config, *sample.others.values()):
            exported = _export(sample, config, form)
            if exported is None:
                continue
            lines = " ".join(exported.lossy)
            yield from (
                f"{form}: {name}={values_of(config)[name]!r} of {kind}"
                for name in sorted(lost_knobs(config, exported))
                if name not in lines
            )


def _export(sample: Drawn, config: TrialConfig, form: ExportFormat) -> Export | None:
    study = study_of("llama-tiny", sample.workload.precision.name, sample.cluster, sample.workload.global_batch)
    try:
        return export(study, contender_of(config), form)
    except ValueError:
        return None


@pytest.mark.parametrize("form", [*CONSUMERS, "trl", "axolotl", "llama-factory", "ms-swift"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_the_list_of_losses_names_every_lost_knob(kind: str, form: ExportFormat) -> None:
    assert set(unlisted(kind, form)) == set()


CASES = {
    "units": (Fsdp2Config(dp_shard=8, blocks_per_unit=2), {}, "blocks_per_unit=2"),
    "groups after forward": (Fsdp2Config(dp_shard=8, reshard_after_forward=4), {}, "reshard_after_forward=4"),
    "prefetch": (Fsdp2Config(dp_shard=8, forward_prefetch=2), {}, "forward_prefetch=2"),
    "tensor parallel": (Fsdp2Config(dp_shard=4, tensor_parallel=2), {}, "tensor_parallel=2"),
    "pipeline": (Fsdp2Config(dp_shard=4, pipeline_parallel=2), {}, "pipeline_parallel=2"),
    "hybrid groups": (
        Fsdp1Config(dp_replicate=2, dp_shard=4, sharding_strategy="HYBRID_SHARD"),
        {},
        "dp_replicate=2, dp_shard=4",
    ),
    "offload of inputs": (
        Fsdp1Config(dp_shard=8),
        {"activation_checkpointing": "full", "activation_offload": True},
        "activation_offload",
    ),
    "garbage": (DdpConfig(), {"gc_every": 50}, "gc_every=50"),
    "binding": (DdpConfig(), {"numa_binding": "exclusive"}, "numa_binding='exclusive'"),
    "autocast": (DdpConfig(), {}, "norms and softmax in bfloat16 were measured"),
}
"""Settings that Accelerate cannot express, and the words by which the list of losses names each."""


@pytest.mark.parametrize("form", ["standard", *bundle.LAUNCHERS])
@pytest.mark.parametrize("case", CASES)
def test_what_the_comments_of_accelerate_yaml_call_lost_is_in_the_list(case: str, form: ExportFormat) -> None:
    strategy, values, words = CASES[case]
    exported = export(
        study_of("mixtral-tiny", "bf16-mixed", EIGHT, 32), contender_of(TrialConfig(strategy=strategy, **values)), form
    )
    (line,) = [line for line in exported.lossy if line.startswith("accelerate.yaml: ") and words in line]
    assert f"# - {line.removeprefix('accelerate.yaml: ')}" in exported.files["accelerate.yaml"]


@pytest.mark.parametrize("config", [ZeroConfig(stage=2), Fsdp1Config(dp_shard=2), Fsdp2Config(dp_shard=2)])
def test_a_backend_that_accelerate_ignores_on_cpu_ranks_is_in_the_list(config) -> None:
    listed = export(study_of("llama-tiny", "fp32", CPU), contender_of(TrialConfig(strategy=config)), "standard").lossy
    assert [line for line in listed if "on CPU ranks accelerate ignores" in line]


def test_a_configuration_that_accelerate_expresses_loses_nothing() -> None:
    study, config = study_of("mixtral-tiny", "bf16-mixed", EIGHT, 32), TrialConfig(strategy=ZeroConfig(stage=3))
    assert export(study, contender_of(config), "standard").lossy == ()

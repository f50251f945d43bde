"""No export format drops what a study trains in silence: an adapter, float8, optimizer, precision, or lengths of samples.

Knobs are walked in test_registries.py, with a plain workload. Here each feature of the workload is.
"""

from collections.abc import Callable, Mapping

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.export import bundle
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trial_rendering import Rendered
from tests.support.values.synthetic_studies import contender_of, study_of, with_adapter, with_float8, with_muon

EIGHT = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
CONFIGS = {
    "ddp": TrialConfig(strategy=DdpConfig(), micro_batch=2),
    "zero": TrialConfig(strategy=ZeroConfig(stage=2), micro_batch=2),
    "fsdp2": TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2),
}
Render = Callable[[ExportSource], Rendered]


def _with_lengths(study: Study) -> Study:
    data = {"lengths": [[8, 10], [32, 4]], "layout": "grouped"}
    workload = Workload.model_validate({**dict(study.spec.workload), "data": data})
    return study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})


def _with_low_states(study: Study) -> Study:
    workload = study.spec.workload.model_copy(update={"precision": PRECISIONS["bf16-true"]})
    return study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})


PLAIN = study_of("llama-tiny", "bf16-mixed", EIGHT, global_batch=32)
FEATURES: Mapping[str, Study] = {
    "adapter": with_adapter(PLAIN, {"rank": 8, "alpha": 16}),
    "data": _with_lengths(PLAIN),
    "float8": with_float8(PLAIN, "rowwise"),
    "optimizer": with_muon(PLAIN),
    "precision": _with_low_states(PLAIN),
}


def _text(render: Render, study: Study, config: TrialConfig) -> str | None:
    """Everything that a format writes and says of a study; None where it rejects the study."""
    try:
        rendered = render(ExportSource.of(study, contender_of(config)))
    except ValueError:
        return None
    return "".join([*rendered.files.values(), *rendered.lossy])


def features_dropped_by(render: Render) -> list[str]:
    """Features of a workload that change neither a file nor a note of a format, with the backend."""
    dropped = []
    for kind, config in CONFIGS.items():
        plain = _text(render, PLAIN, config)
        if plain is None:
            continue
        dropped += [
            f"{feature} under {kind}" for feature, study in FEATURES.items() if _text(render, study, config) == plain
        ]
    return dropped


@pytest.mark.parametrize("form", bundle.RENDERERS)
def test_every_format_writes_or_names_what_a_study_trains(form: str) -> None:
    assert features_dropped_by(bundle.RENDERERS[form]) == [], f"add a note to the module of {form!r} in tuner/export/"  # type: ignore[index]


def test_a_planted_format_that_says_nothing_is_caught() -> None:
    def silent(_source: ExportSource) -> Rendered:
        return Rendered({"planted.yaml": "strategy: ddp\n"}, "planted 1.0", (), CONFIGS["ddp"])

    assert len(features_dropped_by(silent)) == len(FEATURES) * len(CONFIGS)

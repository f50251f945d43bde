"""What exported files say about float16: a scaled loss in the script, and each program's own switch."""

import json
from typing import Any

import pytest
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.export import bundle
from shardtune.tuner.export.precision import loss_scale
from shardtune.tuner.export.source import ExportSource
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

GPU = Cluster(gpu="V100-SXM2-32GB", gpus_per_node=2, memory_gib=31, host_memory_gib=400)
STRATEGIES: dict[str, Any] = {
    "ddp": DdpConfig(),
    "fsdp1": Fsdp1Config(dp_shard=2),
    "fsdp2": Fsdp2Config(dp_shard=2),
    "zero": ZeroConfig(stage=2),
}


def exported(name: str, form: str = "standard", precision: str = "fp16-mixed", **study: Any) -> dict[str, str]:
    trial = contender_of(TrialConfig(strategy=STRATEGIES[name], micro_batch=2))
    return bundle.export(study_of(precision=precision, **{"cluster": GPU} | study), trial, form).files  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ddp", "fsdp1", "fsdp2"])
def test_the_script_scales_the_loss_and_unscales_before_it_clips(name: str) -> None:
    script = exported(name)["train_snippet.py"]
    compile(script, "train_snippet.py", "exec")
    wanted = (
        "self.scaler = ",
        "self.scaler.scale(loss / ACCUMULATION).backward()",
        "self.scaler.unscale_(self.optimizer)",
        "norm = ",
        "self.scaler.step(self.optimizer)",
        "self.scaler.update()",
    )
    places = [script.index(line) for line in wanted]
    assert places == sorted(places)
    assert "torch.float16" in script and "from torch.amp import GradScaler" in script
    assert ("class SharedScaler(GradScaler)" in script) == (name == "fsdp1")
    assert "scaler" not in exported(name, precision="bf16-mixed")["train_snippet.py"].lower()


def test_deepspeed_gets_its_own_dynamic_scale() -> None:
    files = exported("zero")
    document = json.loads(files["ds_config.json"])
    assert document["fp16"] == {
        "enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1,
    }  # fmt: skip
    assert document["bf16"] == {"enabled": False} and document["data_types"] == {"grad_accum_dtype": "fp32"}
    assert "scaler" not in files["train_snippet.py"].lower() and "is_fp16_supported" not in files["train_snippet.py"]
    assert "fp16" not in json.loads(exported("zero", precision="bf16-mixed")["ds_config.json"])


@pytest.mark.parametrize("name", ["ddp", "fsdp1", "fsdp2"])
def test_accelerate_mixes_fp16(name: str) -> None:
    text = exported(name)["accelerate.yaml"]
    assert yaml.safe_load(text)["mixed_precision"] == "fp16"
    assert "bfloat16" not in text
    assert ("fused=False" in text) == (name != "ddp")


@pytest.mark.parametrize("name", ["ddp", "zero"])
def test_the_trainer_and_trl_switch_fp16_on(name: str) -> None:
    values = json.loads(exported(name, "training-arguments")["training_arguments.json"])
    assert values["fp16"] is True and values["bf16"] is False
    assert yaml.safe_load(exported(name, "trl")["trl_sft.yaml"])["fp16"] is True
    assert "fp16" not in json.loads(exported(name, "training-arguments", "bf16-mixed")["training_arguments.json"])


def test_lightning_mixes_16_bits() -> None:
    assert '"precision": "16-mixed"' in exported("ddp", "lightning")["lightning_strategy.py"]


@pytest.mark.parametrize(
    ("name", "form", "reason"),
    [
        ("ddp", "torchtitan", "no loss scale"),
        ("ddp", "axolotl", "nobody has compared"),
        ("ddp", "llama-factory", "nobody has compared"),
        ("ddp", "ms-swift", "nobody has compared"),
        ("fsdp2", "training-arguments", "nobody has compared"),
        ("fsdp2", "lightning", "take the standard files"),
    ],
)
def test_programs_without_such_a_training_are_rejected(name: str, form: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"precision \('fp16-mixed'\) cannot be exported as ") as rejected:
        exported(name, form)
    assert reason in str(rejected.value)


@pytest.mark.parametrize("cluster", [GPU, CPU])
def test_a_new_format_is_rejected_until_its_float16_was_compared(cluster: Cluster) -> None:
    trial = contender_of(TrialConfig(strategy=DdpConfig(), micro_batch=2))
    source = ExportSource.of(study_of(precision="fp16-mixed", cluster=cluster), trial)
    with pytest.raises(ValueError, match="nobody has compared the float16 of planted with ddp"):
        loss_scale.check_format(source, "planted")


def test_the_standard_files_and_their_launchers_need_no_comparison() -> None:
    for form in ("standard", *bundle.LAUNCHERS):
        assert "self.scaler" in exported("fsdp2", form)["train_snippet.py"]


@pytest.mark.parametrize(
    ("form", "trains"), [("lightning", "bfloat16"), ("training-arguments", "float32"), ("trl", "float32")]
)
def test_programs_that_train_no_float16_on_cpu_ranks_are_rejected(form: str, trains: str) -> None:
    with pytest.raises(
        ValueError, match=rf"cannot be exported as {form}: .*{trains} on CPU ranks.*take the standard files"
    ):
        exported("ddp", form, cluster=CPU)
    assert exported("ddp", form)


@pytest.mark.parametrize("name", STRATEGIES)
def test_accelerate_is_not_to_start_float16_on_cpu_ranks(name: str) -> None:
    text = "accelerate trains no float16"
    assert text in exported(name, cluster=CPU)["accelerate.yaml"] and text not in exported(name)["accelerate.yaml"]

"""Exports for axolotl, LLaMA-Factory and ms-swift, read by the tools' own code at their pins: `make test-consumers` runs
this module once in the environment of each tool."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.export import export
from shardtune.workers.rank import check_export
from tests.support.processes import preloaded_forks
from tests.support.values import tool_keys
from tests.support.values.synthetic_studies import contender_of, study_of, with_adapter

TOOLS = [
    pytest.param(
        tool,
        marks=pytest.mark.skipif(
            check_export.installed_release(package) == (0, 0),
            reason=f"{tool} is not installed: `make test-consumers` runs this",
        ),
    )
    for tool, package in tool_keys.PACKAGES.items()
]
GPUS = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
CONFIGS = {
    "ddp": TrialConfig(strategy=DdpConfig(bucket_cap_mb=7, grad_sync="every"), micro_batch=2),
    "fsdp2": TrialConfig(
        strategy=Fsdp2Config(dp_replicate=2, dp_shard=4, cpu_offload=True, pin_memory=False),
        activation_checkpointing="full",
    ),
    "selective": TrialConfig(strategy=Fsdp2Config(dp_shard=8), activation_checkpointing="selective"),
    "compiled": TrialConfig(strategy=Fsdp2Config(dp_shard=8), activation_checkpointing="full", compile=True),
    "zero": TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full"),
}


def exported(tool: Any, config: TrialConfig, adapter: Any, folder: Path, precision: str = "bf16-mixed") -> None:
    study = study_of("llama-tiny", precision, GPUS, global_batch=32)
    adapted = with_adapter(study, adapter) if adapter else study
    for name, text in export(adapted, contender_of(config), tool).files.items():
        (folder / name).write_text(text)


def read(tool: str, folder: Path) -> dict[str, Any]:
    """What the tool says in a process of its own, as the command line asks it."""
    printed = preloaded_forks.output_of(
        "shardtune.workers.rank.check_export", tool, str(folder), log=folder / "check.txt"
    )
    answer: dict[str, Any] = json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])
    return answer


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_tools_own_code_reads_the_file(tool: str, config: TrialConfig, tmp_path: Path) -> None:
    exported(tool, config, None, tmp_path)
    answer = read(tool, tmp_path)
    assert answer["checked"], answer
    assert f"batch {config.micro_batch} × {4 // config.micro_batch}" in answer["says"] and " 32" in answer["says"]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "adapter",
    [
        {"rank": 8, "alpha": 24, "targets": ["q_proj"]},
        {"layers": 1},
        {"rank": 8, "alpha": 24, "quantization": "nf4", "double_quantization": True},
    ],
    ids=["lora", "last", "4-bit"],
)
def test_the_tools_own_code_reads_an_adapter(tool: str, adapter: dict[str, Any], tmp_path: Path) -> None:
    exported(tool, CONFIGS["ddp"], adapter, tmp_path)
    answer = read(tool, tmp_path)
    assert answer["checked"] and ("LoRA r=8" in answer["says"]) == ("rank" in adapter), answer


@pytest.mark.parametrize("tool", TOOLS)
def test_a_key_that_the_tool_does_not_know_is_named(tool: str, tmp_path: Path) -> None:
    exported(tool, CONFIGS["ddp"], None, tmp_path)
    (file,) = (path for path in tmp_path.glob("*.yaml") if path.name != "accelerate.yaml")
    file.write_text(file.read_text() + "lora_rnak: 8\n")
    with pytest.raises(ValueError, match="lora_rnak"):
        check_export.check(tool, tmp_path)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_kept_list_of_keys_is_that_of_the_tool(tool: str) -> None:
    kept = json.loads((tool_keys.FOLDER / f"{tool.replace('-', '_')}.json").read_text())
    remade = tool_keys.document(tool)
    assert [kept[name] for name in ("version", "transformers", "keys")] == [
        remade[name] for name in ("version", "transformers", "keys")
    ]

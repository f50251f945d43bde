"""Reading of exported files by the fine-tuning tools' own parsers, for `check_export`.

Two of the tools take keys that they do not know without a word, so their keys are compared here.
"""

import contextlib
import importlib
import json
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import yaml

_STAND_IN = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
_STAND_IN |= {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 64, "num_key_value_heads": 2}
"""Model configuration that stands in for the repository, which is not at hand while the arguments are checked."""


def read_axolotl(folder: Path) -> str:
    """Check an exported file by reading it with axolotl's own schema."""
    schemas = importlib.import_module("axolotl.utils.schemas.config")
    sections = importlib.import_module("axolotl.utils.schemas.fsdp")
    values = yaml.safe_load((folder / "axolotl.yaml").read_text())
    _check_known(values, schemas.AxolotlInputConfig.model_fields, "axolotl.yaml")
    _check_known(values.get("fsdp_config") or {}, sections.FSDPConfig.model_fields, "fsdp_config")
    # It opens DeepSpeed's file where DeepCompile is on.
    with contextlib.chdir(folder):
        config = schemas.AxolotlInputConfig(**values)
    adapter = f", LoRA r={config.lora_r}" if config.adapter else ""
    return f"batch {config.micro_batch_size} × {config.gradient_accumulation_steps}, sequence_len {config.sequence_len}{adapter}"


def read_llama_factory(folder: Path) -> str:
    """Check an exported file by reading it with LLaMA-Factory's own parser, which rejects unknown keys. It runs in a
    process of one rank."""
    values = yaml.safe_load((folder / "llama_factory.yaml").read_text())
    values |= {"report_to": "none", **_without_gpu()}
    if not torch.cuda.is_available() and values.pop("pure_bf16", False):
        # It asks the GPU whether it computes in bfloat16.
        values["bf16"] = False
    # It reads a section of DeepSpeed as a rank of torchrun alone.
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({"DISABLE_VERSION_CHECK": "1", **alone})
    parser = importlib.import_module("llamafactory.hparams")
    with tempfile.TemporaryDirectory() as output, contextlib.chdir(folder):
        _, data, training, tuning, _ = parser.get_train_args(values | {"output_dir": output})
    adapter = f", LoRA r={tuning.lora_rank}" if tuning.finetuning_type == "lora" else ""
    batch = f"{training.per_device_train_batch_size} × {training.gradient_accumulation_steps}"
    return f"batch {batch}, cutoff_len {data.cutoff_len}{adapter}"


def read_ms_swift(folder: Path) -> str:
    """Check an exported file by reading it with ms-swift's own command-line parser, which returns the arguments that it
    does not know."""
    command, utilities = importlib.import_module("swift.cli.main"), importlib.import_module("swift.utils")
    arguments = importlib.import_module("swift.arguments").SftArguments
    words = [str(folder / "ms_swift.yaml")]
    command.parse_yaml_args(words)
    with tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as output, contextlib.chdir(folder):
        (Path(model) / "config.json").write_text(json.dumps(_STAND_IN))
        stated = {"model": model, "model_type": "llama", "template": "dummy", "output_dir": output}
        for name, value in {**stated, "add_version": False, "report_to": "none", **_without_gpu()}.items():
            words += [f"--{name}", str(value)]
        parsed, unknown = utilities.parse_args(arguments, words)
    _check_known([word.removeprefix("--") for word in unknown if word.startswith("--")], (), "ms_swift.yaml")
    adapter = f", LoRA r={parsed.lora_rank}" if parsed.tuner_type == "lora" else ""
    batch = f"{parsed.per_device_train_batch_size} × {parsed.gradient_accumulation_steps}"
    return f"SftArguments with batch {batch}, max_length {parsed.max_length}{adapter}"


def _check_known(keys: Collection[str], known: Collection[str], name: str) -> None:
    unknown = sorted({*keys} - {*known})
    if unknown:
        raise ValueError(f"{name} has keys that the installed release does not know: {', '.join(unknown)}")


def _without_gpu() -> dict[str, Any]:
    """Additional arguments on a machine without a GPU, where the Trainer would otherwise reject bf16 before it reads
    the other arguments."""
    return {} if torch.cuda.is_available() else {"use_cpu": True}

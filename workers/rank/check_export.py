"""Check whether the library for which a configuration was exported can read the files: `python -m
shardtune.workers.rank.check_export FORMAT DIR` prints one JSON object.

Consumers are no dependencies of this project, so each is imported only for its own format.
"""

import importlib
import json
import runpy
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from shardtune.workers.rank import check_finetuning, check_launchers

Consumers = dict[str, tuple[str, Callable[[Path], str]]]
"""Package that reads each export format, and function that has this package read an exported file."""


def check(form: str, folder: Path, consumers: Consumers | None = None) -> dict[str, Any]:
    """Have the library for which a format is exported read the exported files. Returns `checked`, and in `says` the
    result or the reason why nothing was checked."""
    package, read = (_CONSUMERS if consumers is None else consumers)[form]
    try:
        installed = version(package)
    except PackageNotFoundError:
        return {"checked": False, "says": f"{package} is not installed here, so nothing of it has read the files"}
    try:
        summary = read(folder)
    except ImportError as error:
        return {"checked": False, "says": f"{package} {installed} cannot be imported here ({error})"}
    return {"checked": True, "says": f"{package} {installed} reads it: {summary}"}


def installed_release(package: str) -> tuple[int, int]:
    """Return the first two numbers of an installed package's version; zeros if it is not installed."""
    try:
        major, minor = version(package).split(".")[:2]
    except PackageNotFoundError:
        return 0, 0
    return int(major), int(minor)


def _training_arguments(folder: Path) -> str:
    transformers = importlib.import_module("transformers")
    values = json.loads((folder / "training_arguments.json").read_text())
    if not torch.cuda.is_available():
        # Without a GPU it would reject bf16 before it reads the other arguments.
        values["use_cpu"] = True
    arguments = transformers.TrainingArguments(output_dir=tempfile.gettempdir(), **values)
    batch = f"batch {arguments.per_device_train_batch_size} × {arguments.gradient_accumulation_steps}"
    mesh = folder / "distributed_config.json"
    if not mesh.exists():
        return f"TrainingArguments with {batch}"
    config = importlib.import_module("transformers.distributed").DistributedConfig(**json.loads(mesh.read_text()))
    axes = f"dp {config.dp_replicate_size} × {config.fsdp_size}, tp {config.tp_size}, ep {config.ep_size}"
    return f"TrainingArguments with {batch}, and DistributedConfig with {axes}"


def _torchtitan(folder: Path) -> str:
    """Read the export with torchtitan's configuration manager, which calls the exported function."""
    if installed_release("torchtitan") < (0, 3):
        raise ImportError("before 0.3 it reads TOML alone")
    # The module is removed again: the next export has one of the same name.
    sys.path.insert(0, str(folder))
    try:
        # Imported here first: torchtitan hides the reason of a failed import.
        exported: Any = importlib.import_module("torchtitan_config")
        chosen = ""
        if "SET-ME" in (exported.MODEL, exported.FLAVOR):
            exported.MODEL, exported.FLAVOR, chosen = "llama3", "debugmodel", " (of llama3's debugmodel)"
        manager = importlib.import_module("torchtitan.config").ConfigManager()
        config = manager.parse_args(["--module", "torchtitan_config", "--config", "shardtune"])
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("torchtitan_config", None)
    mesh = config.parallelism
    axes = f"{mesh.data_parallel_replicate_degree} × {mesh.data_parallel_shard_degree}"
    checkpointing = (
        type(config.activation_checkpoint).__qualname__ if config.activation_checkpoint else "no checkpointing"
    )
    return f"Trainer.Config with dp {axes}, local batch {config.training.local_batch_size}, {checkpointing}{chosen}"


def _lightning(folder: Path) -> str:
    names = runpy.run_path(str(folder / "lightning_strategy.py"))
    strategy, arguments = names["strategy"](), names["trainer_arguments"]()
    if arguments["accelerator"] == "cpu" and type(strategy).__name__ == "DDPStrategy":
        importlib.import_module("lightning.pytorch").Trainer(strategy=strategy, logger=False, **arguments)
        return "a Trainer with DDPStrategy"
    return f"a {type(strategy).__name__}"


def _trl(folder: Path) -> str:
    """Read the export with TRL's own parser, which rejects unknown keys."""
    trl = importlib.import_module("trl")
    words = ["--config", str(folder / "trl_sft.yaml"), "--output_dir", tempfile.gettempdir()]
    if (folder / "ds_config.json").exists():
        words += ["--deepspeed", str(folder / "ds_config.json")]
    if not torch.cuda.is_available():
        # Without a GPU it would reject bf16 before it reads the other arguments.
        words += ["--use_cpu", "true"]
    parser = trl.TrlParser((trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    _, arguments, _ = parser.parse_args_and_config(args=words)
    batch = f"{arguments.per_device_train_batch_size} × {arguments.gradient_accumulation_steps}"
    return f"SFTConfig with batch {batch}, max_length {arguments.max_length}"


_CONSUMERS: Consumers = {
    "training-arguments": ("transformers", _training_arguments),
    "torchtitan": ("torchtitan", _torchtitan),
    "lightning": ("lightning", _lightning),
    "trl": ("trl", _trl),
    "axolotl": ("axolotl", check_finetuning.read_axolotl),
    "llama-factory": ("llamafactory", check_finetuning.read_llama_factory),
    "ms-swift": ("ms-swift", check_finetuning.read_ms_swift),
    "skypilot": ("skypilot", check_launchers.read_skypilot),
    "dstack": ("dstack", check_launchers.read_dstack),
    "trainjob": ("kubeflow-trainer-api", check_launchers.read_trainjob),
    "ray": ("ray", check_launchers.read_ray),
}


if __name__ == "__main__":
    answer = check(sys.argv[1], Path(sys.argv[2]))
    # Consumers print while they are imported; the answer is the last line.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")

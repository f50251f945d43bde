"""Check whether the library for which a configuration was exported can read the files: `python -m
shardtune.workers.rank.check_export FORMAT DIR` prints one JSON object.

Consumers are no dependencies of this project, so each is imported only for its own format.
"""

import importlib
import importlib.util
import json
import runpy
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Consumers = dict[str, tuple[str, Callable[[Path], str]]]
"""Package and reader function by export format."""


def check(form: str, folder: Path, consumers: Consumers | None = None) -> dict[str, Any]:
    """Have the export format's own library read the exported files; returns `checked` and, in `says`, the result or the
    reason why there was no check."""
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


def _training_arguments(folder: Path) -> str:
    transformers = importlib.import_module("transformers")
    values = json.loads((folder / "training_arguments.json").read_text())
    if not torch.cuda.is_available():
        # Without a GPU it would reject bf16 before it reads the other arguments.
        values["use_cpu"] = True
    arguments = transformers.TrainingArguments(output_dir=tempfile.gettempdir(), **values)
    return f"TrainingArguments with batch {arguments.per_device_train_batch_size} × {arguments.gradient_accumulation_steps}"


def _torchtitan(folder: Path) -> str:
    """Read the export with torchtitan's configuration parser alone."""
    # An empty parent package: the real one imports triton, which is missing on CPU machines.
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None
    sys.modules.setdefault("torchtitan", importlib.util.module_from_spec(spec))
    manager = importlib.import_module("torchtitan.config").ConfigManager()
    job = manager.parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    mesh = job.parallelism
    axes = f"{mesh.data_parallel_replicate_degree} × {mesh.data_parallel_shard_degree}"
    return f"JobConfig with dp {axes}, local batch {job.training.local_batch_size}"


def _lightning(folder: Path) -> str:
    names = runpy.run_path(str(folder / "lightning_strategy.py"))
    strategy, arguments = names["strategy"](), names["trainer_arguments"]()
    if arguments["accelerator"] == "cpu" and type(strategy).__name__ == "DDPStrategy":
        importlib.import_module("lightning.pytorch").Trainer(strategy=strategy, logger=False, **arguments)
        return "a Trainer with DDPStrategy"
    return f"a {type(strategy).__name__}"


_CONSUMERS: Consumers = {
    "training-arguments": ("transformers", _training_arguments),
    "torchtitan": ("torchtitan", _torchtitan),
    "lightning": ("lightning", _lightning),
}


if __name__ == "__main__":
    answer = check(sys.argv[1], Path(sys.argv[2]))
    # Consumers print while they are imported; the answer is the last line.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")

"""Options that several commands share."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, get_args

import typer
from pydantic import ValidationError

from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.api_schemas.machines import engines
from shardtune.api_schemas.machines.hardware import MOST_RANKS
from shardtune.api_schemas.training.adapters import AdapterSchema, LastLayers, Lora
from shardtune.api_schemas.training.sample_lengths import LAYOUTS
from shardtune.service.cli.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
StateDir = Annotated[Path, typer.Option(help="Directory of studies, logs and trials.")]
Service = Annotated[
    str | None,
    typer.Option(
        "--service",
        "--url",
        envvar="SHARDTUNE_SERVICE_URL",
        help="Address of a running service (default: use the state directory).",
    ),
]
RunningService = Annotated[
    str, typer.Option("--service", "--url", envvar="SHARDTUNE_SERVICE_URL", help="Address of a running service.")
]
LAUNCHER_VARIABLE = "SHARDTUNE_WORKER_LAUNCHER"
"""Environment variable that names the worker's launcher if the command line does not."""
DEFAULT_SERVICE = "http://127.0.0.1:8470"
"""Default address of `shardtune serve`."""
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key (default: SHARDTUNE_API_KEY or SHARDTUNE_API_KEY_FILE)."),
]
StudyId = Annotated[str, typer.Argument(help="Study id, or `last` for the newest study.")]
AllowModel = Annotated[
    list[str] | None, typer.Option("--allow-model", metavar="NAME", help="Installed model that a study may use.")
]
AllowScript = Annotated[
    list[str] | None,
    typer.Option("--allow-script", metavar="NAME=COMMAND", help="Training script that a study may use."),
]


PlainModel = Annotated[
    str,
    typer.Argument(
        help="Preset such as llama-2-70b, Hugging Face id, or path of a model's folder, config.json or study file."
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option("--seq-len", min=8, help="Tokens per sample (default: the study's, or the model's up to 4096)."),
]
GlobalBatch = Annotated[
    int | None, typer.Option("--global-batch", min=1, help="Samples per step (default: the study's, or 8 per rank).")
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Dtypes: bf16-mixed, bf16-autocast, bf16-true, fp16-mixed, fp32, or auto, by the device (default: the study's, or auto).",
    ),
]
LauncherName = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="|".join(get_args(engines.EngineName)),
        help="Run trials over the hosts of a Slurm job or a Ray cluster.",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_RANKS, help="Number of hosts of a trial (default: all of a Slurm job)."),
]


LeafNodes = Annotated[
    int | None, typer.Option("--nodes-per-leaf", help="Nodes below one leaf switch (default: all of them).")
]
LeafOversubscription = Annotated[
    float | None,
    typer.Option(
        "--oversubscription",
        help="Bandwidth of a leaf switch's nodes divided by that of its uplinks, such as 2 for 2:1 (default: 1).",
    ),
]
LoraRank = Annotated[
    int | None,
    typer.Option(
        "--lora",
        metavar="RANK",
        help="Train LoRA adapters of this rank on all linear layers, with the model's own weights frozen.",
    ),
]
QloraRank = Annotated[
    int | None,
    typer.Option(
        "--qlora",
        metavar="RANK",
        help="Train LoRA adapters of this rank beside weights that bitsandbytes keeps in 4 bits (nf4).",
    ),
]
DoraRank = Annotated[
    int | None,
    typer.Option(
        "--dora",
        metavar="RANK",
        help="Train LoRA adapters of this rank together with the length of each adapted weight's rows (DoRA).",
    ),
]
LastLayersCount = Annotated[
    int | None,
    typer.Option("--last-layers", metavar="N", help="Train the last N layers alone, with all other weights frozen."),
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="JSONL file of the samples' lengths: a number of tokens, or a list of token ids, on each line.",
    ),
]
LayoutName = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="|".join(LAYOUTS),
        help="Arrangement of samples of several lengths: as they come, sorted by length within a step, or packed into rows.",
    ),
]


def adapter_options(
    lora: int | None, last_layers: int | None, qlora: int | None = None, dora: int | None = None
) -> AdapterSchema | None:
    """Return the adapter that `--lora`, `--qlora`, `--dora` or `--last-layers` asks for; None without these options.

    Raises:
        InputError: several are given, or a number is out of range.
    """
    options = {"--lora": lora, "--qlora": qlora, "--dora": dora, "--last-layers": last_layers}
    stated = [(name, value) for name, value in options.items() if value is not None]
    if not stated:
        return None
    if len(stated) > 1:
        named = " and ".join(f"{name} ({value})" for name, value in stated)
        raise InputError(f"{named} exclude each other; leave out {'one' if len(stated) == 2 else 'all but one'}")
    ((name, value),) = stated
    try:
        if name == "--last-layers":
            return LastLayers(layers=value)
        # Validated before the product below: no float holds a number of hundreds of digits.
        Lora(rank=value)
        # Twice the rank: the scale that PEFT's and TRL's examples use, at any rank.
        quantization = "nf4" if name == "--qlora" else None
        return Lora(rank=value, alpha=2.0 * value, quantization=quantization, dora=name == "--dora")
    except ValidationError as error:
        raise InputError(f"{name} ({value}) {rephrase_error(error.errors()[0]['msg'])}; give such a number") from None


def stated_workload(seq_len: int | None, global_batch: int | None, precision: str | None) -> dict[str, int | str]:
    """Return the workload fields that options set. Fields without an option are left out, because a null would replace
    the value in a study file."""
    values = {"sequence_length": seq_len, "global_batch": global_batch, "precision": precision}
    return {name: value for name, value in values.items() if value is not None}


def worker_launcher(options: Sequence[str]) -> str:
    """Return the launcher that a worker with these command-line options uses. If the options name none, the
    environment variable applies, and then `local`."""
    stated = next((value for option, value in pairwise(options) if option == "--launcher"), None)
    return stated or os.environ.get(LAUNCHER_VARIABLE) or "local"


def launcher_options(launcher: str | None, nodes: int | None) -> tuple[str, ...]:
    """Check the launcher and return its options for the worker's command line.

    Raises:
        InputError: the launcher is unknown, or several hosts were requested without a launcher.
    """
    # Checked here: the worker would say the same, but only after the service has started.
    if launcher not in (None, *get_args(engines.LauncherName)):
        raise InputError(f"--launcher ({launcher}) must be {listed(get_args(engines.LauncherName), 'or')}")
    options = (*(("--launcher", launcher) if launcher else ()), *(("--nodes", str(nodes)) if nodes else ()))
    if (nodes or 1) > 1 and worker_launcher(options) == "local":
        raise InputError(
            f"--nodes ({nodes}) must be 1 without a launcher over hosts; add --launcher {engines.ENGINES_IN_WORDS}"
        )
    return options


def worker_options(models: list[str] | None, scripts: list[str] | None) -> tuple[str, ...]:
    """Return the worker's command-line options for the models and scripts that it may run."""
    named = [("--allow-model", name) for name in models or ()] + [("--allow-script", text) for text in scripts or ()]
    return tuple(part for pair in named for part in pair)

"""`shardtune rehearse`: build and step a configuration at a cluster's full number of ranks, without the cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from pydantic import TypeAdapter, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.targets import TargetChoice
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest
from shardtune.service.cli.errors import NOTHING_FEASIBLE, InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import (
    AsJson,
    GlobalBatch,
    PlainModel,
    PrecisionName,
    SequenceLength,
    stated_workload,
)
from shardtune.tuner.objective import available_gib

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
    from shardtune.service.cli.predict import model_argument
    from shardtune.service.cli.rehearse import lines, processes
    from shardtune.tuner.prediction import catalogue, prediction_request
    from shardtune.tuner.projection import rungs
    from shardtune.tuner.search import fastest
else:
    study_file = LazyModule("shardtune.service.cli.study_file")
    model_argument = LazyModule("shardtune.service.cli.predict.model_argument")
    lines = LazyModule("shardtune.service.cli.rehearse.lines")
    processes = LazyModule("shardtune.service.cli.rehearse.processes")
    catalogue = LazyModule("shardtune.tuner.prediction.catalogue")
    prediction_request = LazyModule("shardtune.tuner.prediction.prediction_request")
    rungs = LazyModule("shardtune.tuner.projection.rungs")
    fastest = LazyModule("shardtune.tuner.search.fastest")

app = typer.Typer()


class RehearsalSubject(NamedTuple):
    """Trial to rehearse (to build without GPUs at its full number of ranks), with the memory sizes that its peak is
    compared with."""

    trial: TrialTask
    predicted_gib: float | None
    """Predicted peak memory of the trial's tensors on a rank, in GiB; None without a prediction."""
    available_gib: float | None
    """Memory in GiB that a GPU may use. None for a configuration with `compile`: it is rehearsed uncompiled, and how
    much memory compiled blocks keep is unknown."""


def subject_of(model: str, target: str | None, config: str | None, values: dict[str, Any]) -> RehearsalSubject:
    """Return the trial to rehearse (to build without GPUs at its full number of ranks), from the command's options.

    Raises:
        InputError: names the option or field, its value and the remedy.
    """
    subject = model_argument.read_model(model)
    try:
        cluster = _cluster(target, subject)
        request = PredictionRequest.model_validate({**subject.values, **values, "cluster": cluster, "top": 1})
        resolved = prediction_request.resolve(request)
        chosen = _read_config(config) if config is not None else _fastest(request)
        if chosen.compiles:
            sys.stderr.write(
                "note: rehearsed without compilation: what compiled code keeps depends on kernels that only a GPU makes\n"
            )
        trial = TrialTask(
            model=request.model,
            workload=resolved.workload(request.global_batch or resolved.global_batch),
            cluster=resolved.cluster,
            config=chosen.without_compile(),
        )
        available = None if chosen.compiles else available_gib(trial.cluster, Objective())
        return RehearsalSubject(trial, _predicted_gib(request, trial), available)
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def _cluster(text: str | None, subject: model_argument.ModelArgument) -> Cluster | str:
    """Return the cluster that `--target` names or, without the option, the study's target. A target without a kind of
    GPU has the GPUs of the study."""
    own, target = subject.cluster, subject.target
    if text is not None:
        target = TypeAdapter(TargetChoice).validate_python(text)
        if target.gpu is not None:
            return f"{target.nodes}x{target.gpus_per_node}x{target.gpu}"
    cluster = catalogue.parse_cluster(own) if isinstance(own, str) and own != "local" else own
    if isinstance(cluster, str):
        kind = "" if target is None else f" ({text}) must name the kind of GPU, too"
        raise InputError(f"--target{kind or ' is missing'}: nodes, GPUs of a node and their kind, such as 64x8xh100")
    return cluster if target is None else rungs.target_cluster(cluster, target)


def _read_config(text: str) -> TrialConfig:
    """Read a configuration from JSON text, or from a file that holds it, such as an exported `config.json`."""
    if not text.lstrip().startswith("{"):
        content = study_file.read_json_object(Path(text))
    else:
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"--config is not JSON: {error}; correct it, or name a file") from None
    return TrialConfig.model_validate(content.get("config", content))


def _fastest(request: PredictionRequest) -> TrialConfig:
    rows = fastest.answer_request(request).fastest
    if not rows:
        raise InputError("no configuration is predicted to fit on the target; name one by --config")
    return rows[0].config


def _predicted_gib(request: PredictionRequest, trial: TrialTask) -> float | None:
    """Return the predicted peak memory of the tensors, or None if the configuration cannot divide the global batch;
    the rehearsal then reports that error."""
    update = {"configs": (trial.config,), "global_batch": trial.workload.global_batch, "top": 0}
    try:
        rows: tuple[Prediction, ...] = fastest.answer_request(request.model_copy(update=update)).predictions
    except ValueError:
        return None
    return rows[0].memory.allocated_gib


@app.command("rehearse")
def command(
    model: PlainModel,
    target: Annotated[
        str | None,
        typer.Option(
            help="Nodes × GPUs per node × model, such as 64x8xh100, or 64x8 with a study file (default: its cluster)."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|JSON",
            help="Configuration, such as an exported config.json (default: the fastest predicted one).",
        ),
    ] = None,
    seq_len: SequenceLength = None,
    global_batch: GlobalBatch = None,
    precision: PrecisionName = None,
    limit_s: Annotated[float, typer.Option(min=1, help="Seconds after which a rehearsing process is ended.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Rehearse a configuration at a cluster's full number of ranks, in a process without GPUs: does it build, and with what memory?"""
    processes.require_torch()
    subject = subject_of(model, target, config, stated_workload(seq_len, global_batch, precision))
    result = processes.rehearse(subject.trial, subject.predicted_gib, subject.available_gib, limit_s)
    if as_json:
        print(result.model_dump_json())
    else:
        lines.show(result)
    if result.problem is not None:
        raise typer.Exit(NOTHING_FEASIBLE)

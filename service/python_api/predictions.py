"""`predict`, `memory` and `explain_config`: answers that this process computes, as `shardtune predict` does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.predictions import PredictionTable
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.predict import measured_hardware, predictor
from shardtune.service.mcp import computed_tools
from shardtune.service.mcp.schemas.answers import ExplainConfigAnswer, JobAnswer
from shardtune.service.python_api import arguments, config_rows
from shardtune.service.python_api.arguments import ClusterLike, ConfigLike, ModelLike, WorkloadFields
from shardtune.service.python_api.failures import python_errors
from shardtune.service.python_api.result import Result
from shardtune.service.python_api.rows import RowTable

_STATE_DIR = ".shardtune"


@dataclass(frozen=True, repr=False)
class Predictions(Result):
    """Predicted configurations in two tables: `fastest`, if a global batch is known, and `strategies`."""

    values: PredictionTable | None = None
    """All predicted values, including the terms of the memory, the parts of the step and the assumptions."""


@dataclass(frozen=True, repr=False)
class ExplainedConfig(Result):
    """Explanation of one configuration, in the tables `configuration` (which also holds the fastest one), `memory`,
    `step` and `differences`."""

    values: ExplainConfigAnswer | None = None
    """All values of the explanation."""


def predict(
    model: ModelLike,
    cluster: ClusterLike | None = None,
    *,
    top: int = 10,
    space: Mapping[str, Any] | None = None,
    micro_batch: int = 1,
    gradient_accumulation: int | None = None,
    checkpointing: str = "none",
    hardware: str | Path | None = None,
    trace: bool = False,
    allow_models: Sequence[str] = (),
    state_dir: str | Path = _STATE_DIR,
    **workload: Unpack[WorkloadFields],
) -> Predictions:
    """Predict the fastest configurations that fit, and memory and speed of each strategy, without running anything.

    Args:
        model: preset, Hugging Face id, path, content of a `config.json`, or a study file.
        cluster: such as `8xh100`, or `local` for the machine that `shardtune measure-hardware` measured (default: the
        study file's, or `local`).
        top: number of fastest configurations.
        space: limits of the search space, as in a study file: `{"backends": ["fsdp2"]}`.
        micro_batch: samples per forward pass and GPU of the table `strategies`.
        gradient_accumulation: micro batches per step (default: as many as `global_batch` needs).
        checkpointing: activation checkpointing of the table `strategies`: `none`, `selective` or `full`.
        hardware: output file of `shardtune measure-hardware --json`, in place of `cluster`.
        trace: whether to build the model and count its operations even if formulas for its architecture are known;
        needs torch.
        allow_models: names of your own models that may run here to be traced.
        state_dir: folder of `shardtune tune`, for `cluster="local"`.
        workload: `sequence_length`, `global_batch`, `precision`, `optimizer`, `adapter`, `attention`, `data`,
        `float8`.

    Raises:
        InputError: a value is unknown or wrong; each line names field, value and remedy.
        PlatformFailure: the hub did not answer, or a model could not be counted.
    """
    with python_errors():
        options = _options(model, cluster, hardware, state_dir, workload, space)
        options = replace(
            options,
            micro_batch=micro_batch,
            gradient_accumulation=gradient_accumulation,
            checkpointing=checkpointing,
            top=top,
            trace=trace,
            allowed_models=tuple(allow_models),
        )
        return _predictions(predictor.predict(options))


def memory(
    model: ModelLike,
    cluster: ClusterLike | None = None,
    *,
    micro_batch: int = 1,
    checkpointing: str = "none",
    hardware: str | Path | None = None,
    state_dir: str | Path = _STATE_DIR,
    **workload: Unpack[WorkloadFields],
) -> Predictions:
    """Predict the memory of each strategy, whether it fits or not; the arguments are those of `predict`.

    Raises:
        InputError: a value is unknown or wrong; each line names field, value and remedy.
        PlatformFailure: the hub did not answer, or a model could not be counted.
    """
    with python_errors():
        options = _options(model, cluster, hardware, state_dir, workload, None)
        options = replace(options, micro_batch=micro_batch, checkpointing=checkpointing, top=0)
        return _predictions(predictor.predict(options))


def explain_config(
    model: ModelLike,
    cluster: ClusterLike | None,
    config: ConfigLike,
    *,
    hardware: str | Path | None = None,
    state_dir: str | Path = _STATE_DIR,
    **workload: Unpack[WorkloadFields],
) -> ExplainedConfig:
    """Predict one configuration: the terms of its memory, the parts of its step, and how it differs from the fastest
    one.

    Args:
        model: as for `predict`.
        cluster: as for `predict`.
        config: configuration in Shardtune's format, or the content or path of a DeepSpeed, Accelerate or
            TrainingArguments file, which needs `sequence_length` and `global_batch` beside it.
        hardware: as for `predict`.
        state_dir: as for `predict`.
        workload: as for `predict`; without `global_batch`, one forward pass a step.

    Raises:
        InputError: a value is unknown or wrong; each line names field, value and remedy.
        PlatformFailure: the hub did not answer, or a model could not be counted.
    """
    with python_errors(), predictor.input_errors():
        options = replace(_options(model, cluster, hardware, state_dir, workload, None), top=1)
        request = predictor.read_request(options)
        predict_table: Callable[..., PredictionTable] = lambda asked: predictor.predict_table(asked, options)  # noqa: E731
        answer = computed_tools.explain_answer(predict_table, request, arguments.read_config(config))
    rows = [config_rows.predicted(answer.configuration, TrialConfig.model_validate(answer.configuration.config))]
    if answer.fastest is not None:
        rows.append(config_rows.predicted(answer.fastest, TrialConfig.model_validate(answer.fastest.config)))
    tables = (
        RowTable("configuration", "The configuration, and the fastest one for the same job", rows),
        RowTable("memory", f"Terms of the memory at its peak ({answer.peak_moment})", config_rows.memory_terms(answer)),
        RowTable("step", "Parts of a step; some overlap", config_rows.step_parts(answer)),
        RowTable("differences", "Knobs in which the fastest one differs", config_rows.differences(answer)),
    )
    return ExplainedConfig(answer.summary, tables, _subject(answer), answer.notes, answer)


def _options(
    model: ModelLike,
    cluster: ClusterLike | None,
    hardware: str | Path | None,
    state_dir: str | Path,
    workload: Mapping[str, Any],
    space: Mapping[str, Any] | None,
) -> predictor.PredictOptions:
    subject = arguments.read_model(model)
    if cluster is not None and not cluster:
        raise InputError(f"cluster ({cluster!r}) is empty; give one such as 8xh100, or 'local'")
    chosen = subject.cluster if cluster is None and hardware is None else cluster or "local"
    file = None if hardware is None else Path(hardware)
    values = subject.values | arguments.stated(workload) | ({} if space is None else {"space": space})
    return predictor.PredictOptions(
        model=replace(subject, values=values),
        cluster=chosen,  # type: ignore[arg-type]  # A cluster's fields are validated with the request.
        sequence_length=None,
        micro_batch=1,
        gradient_accumulation=None,
        precision=None,
        hardware=measured_hardware.hardware_report(chosen, file, Path(state_dir)),  # type: ignore[arg-type]
        global_batch=workload.get("global_batch"),
    )


def _predictions(table: PredictionTable) -> Predictions:
    of_memory = computed_tools.memory_answer(table)
    strategies = RowTable(
        "strategies",
        "Each strategy, whether it fits or not",
        [config_rows.strategy(row, p.config) for row, p in zip(of_memory.strategies, table.predictions, strict=True)],
    )
    if table.global_batch is None:
        return Predictions(of_memory.summary, (strategies,), _subject(of_memory), of_memory.notes, table)
    answer = computed_tools.predict_answer(table)
    fastest = RowTable(
        "fastest",
        f"Fastest configurations at a global batch of {table.global_batch:,} {table.batch_counts}",
        [config_rows.predicted(row, p.config) for row, p in zip(answer.configurations, table.fastest, strict=True)],
        f"Configurations of one rank are equal within ± {table.equal_within:.1%}, the error of such a comparison.",
    )
    levers = tuple(f"What would fit: {lever}" for lever in answer.levers)
    return Predictions(answer.summary, (fastest, strategies), _subject(answer), (*levers, *answer.notes), table)


def _subject(answer: JobAnswer) -> str:
    trained = "" if answer.trained == "all weights" else f", {answer.trained}"
    return (
        f"{answer.model} ({answer.parameters / 1e9:.2f} billion parameters{trained}) on {answer.cluster}, sequence "
        f"{answer.sequence_length:,}, {answer.precision}, {answer.optimizer}"
    )

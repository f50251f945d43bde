"""Tools that compute an answer without a run: `predict`, `memory` and `explain_config`."""

from collections.abc import Callable

from pydantic import JsonValue

from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest, PredictionTable
from shardtune.service.mcp import predicted_rows
from shardtune.service.mcp.configs import read_config
from shardtune.service.mcp.errors import rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.schemas.answers import (
    ExplainConfigAnswer,
    MemoryAnswer,
    MemoryRow,
    PredictAnswer,
    PredictedConfig,
)
from shardtune.service.mcp.schemas.arguments import ExplainConfigArguments, MemoryArguments, PredictArguments
from shardtune.service.mcp.schemas.figures import Figure, figure, rounded
from shardtune.service.wording.answers import step_limits
from shardtune.tuner.search.space.flat import differing_knobs


def predict(product: Product, arguments: PredictArguments) -> PredictAnswer:
    """Predict the fastest configurations that fit in memory."""
    with rejections(PredictionRequest):
        space = {"backends": arguments.backends, "knobs": arguments.knobs} if arguments.backends else None
        request = arguments.request(
            global_batch=arguments.global_batch, top=arguments.top, space=space or {"knobs": arguments.knobs}
        )
        table = product.predict(request)
    return predict_answer(table)


def predict_answer(table: PredictionTable) -> PredictAnswer:
    """Return the fastest configurations of a table of predictions, with their predicted figures."""
    configurations = tuple(predicted_rows.predicted_config(row) for row in table.fastest)
    return PredictAnswer(
        summary=_fastest_in_words(configurations, table.levers),
        **predicted_rows.job_fields(table),
        global_batch=table.global_batch,
        configurations=configurations,
        equal_within=rounded(table.equal_within),
        levers=table.levers,
    )


def memory(product: Product, arguments: MemoryArguments) -> MemoryAnswer:
    """Predict the memory that each strategy (DDP, ZeRO, FSDP) needs."""
    with rejections(PredictionRequest):
        request = arguments.request(micro_batch=arguments.micro_batch, checkpointing=arguments.checkpointing, top=0)
        table = product.predict(request)
    return memory_answer(table)


def memory_answer(table: PredictionTable) -> MemoryAnswer:
    """Return the memory that each strategy of a table of predictions needs."""
    rows = tuple(predicted_rows.memory_row(row) for row in table.predictions)
    return MemoryAnswer(summary=_memory_in_words(rows), **predicted_rows.job_fields(table), strategies=rows)


def explain_config(product: Product, arguments: ExplainConfigArguments) -> ExplainConfigAnswer:
    """Explain the memory and the step time of one configuration, and compare it with the fastest one."""
    with rejections(PredictionRequest):
        request = arguments.request(global_batch=arguments.global_batch, top=1)
        return explain_answer(product.predict, request, arguments.config)


def explain_answer(
    predict_table: Callable[[PredictionRequest], PredictionTable],
    request: PredictionRequest,
    config_values: dict[str, JsonValue],
) -> ExplainConfigAnswer:
    """Predict the configuration that `config_values` describe, and compare it with the fastest one for the request.

    Raises:
        ToolRejected: the configuration cannot be read, or contradicts the workload or the cluster.
    """
    config, notes = read_config(config_values, request)
    table = predict_table(request.model_copy(update={"configs": (config,)}))
    explained = table.predictions[0]
    fastest = table.fastest[0] if table.fastest else None
    speedup = None if fastest is None else _speedup(explained, fastest)
    row = predicted_rows.memory_row(explained)
    speed = explained.speed
    return ExplainConfigAnswer(
        summary=_explained_in_words(row, None if speed is None else step_limits.limits(speed), fastest, speedup),
        **predicted_rows.job_fields(table, notes),
        configuration=row,
        memory_terms=predicted_rows.memory_terms(explained),
        peak_moment=explained.memory.moment,
        step_time=None if speed is None else _step_time(explained),
        step_parts_s={} if speed is None else _largest_first(speed.parts_s),
        exposed_communication=None
        if speed is None
        else figure(
            speed.exposed_communication_fraction,
            "fraction of the step",
            "predicted",
            predicted_rows.speed_source(speed),
        ),
        fastest=None if fastest is None else predicted_rows.predicted_config(fastest),
        expected_speedup=speedup,
        differences={} if fastest is None else _differences(explained, fastest),
    )


def _differences(explained: Prediction, fastest: Prediction) -> dict[str, tuple[JsonValue, JsonValue]]:
    knobs = differing_knobs((explained.config, fastest.config))
    return {name: (mine, other) for name, (mine, other) in knobs.items()}


def _largest_first(parts_s: dict[str, float]) -> dict[str, float]:
    return {name: rounded(seconds) for name, seconds in sorted(parts_s.items(), key=lambda part: -part[1]) if seconds}


def _step_time(prediction: Prediction) -> Figure:
    speed = prediction.speed
    assert speed is not None
    # The step time's band follows from the speed's: the tokens of a step are the same.
    tokens = speed.step_time_s * speed.tokens_per_s_per_gpu
    ends = (tokens / speed.high_tokens_per_s_per_gpu, tokens / speed.low_tokens_per_s_per_gpu)
    return figure(speed.step_time_s, "s", "predicted", predicted_rows.speed_source(speed), ends)


def _speedup(explained: Prediction, fastest: Prediction) -> Figure | None:
    if explained.speed is None or fastest.speed is None:
        return None
    ratio = fastest.speed.tokens_per_s_per_gpu / explained.speed.tokens_per_s_per_gpu
    return figure(
        ratio, "ratio of speeds", "predicted", "both speeds by the same predictor; a study measures the ratio"
    )


def _fastest_in_words(configurations: tuple[PredictedConfig, ...], levers: tuple[str, ...]) -> str:
    if not configurations:
        remedy = f" What would fit: {levers[0]}." if levers else ""
        return f"No configuration is predicted to fit, or the GPU's rates are unknown.{remedy}"
    first = configurations[0]
    assert first.memory is not None
    speed = "speed unknown" if first.speed is None else first.speed.in_words()
    return (
        f"Fastest: {first.description}: {speed}; memory {first.memory.in_words()}, of {first.capacity_gib:g} GiB "
        f"({first.fits}). Nothing was measured."
    )


def _memory_in_words(rows: tuple[MemoryRow, ...]) -> str:
    fitting = [row for row in rows if row.fits == "fits"]
    least = min(rows, key=lambda row: row.memory.value if row.memory else 0.0)
    assert least.memory is not None
    if fitting:
        names = "; ".join(row.description for row in fitting[:4])
        return f"{len(fitting)} of {len(rows)} strategies surely fit: {names}. Least: {least.description}, {least.memory.in_words()}."
    change = f" Smallest change: {least.cheapest_change}." if least.cheapest_change else ""
    return f"No strategy surely fits. Least: {least.description}, {least.memory.in_words()}, {least.fits}.{change}"


def _explained_in_words(
    row: MemoryRow, limited_by: str | None, fastest: Prediction | None, speedup: Figure | None
) -> str:
    assert row.memory is not None
    speed = "speed unknown" if row.speed is None else row.speed.in_words()
    text = f"{row.description}: {speed}; memory {row.memory.in_words()} of {row.capacity_gib:g} GiB: {row.fits}"
    limit = "" if limited_by is None else f"; limited by {limited_by}"
    change = f" Smallest change that fits: {row.cheapest_change}." if row.cheapest_change else ""
    gain = (
        ""
        if fastest is None or speedup is None
        else f" Fastest: {fastest.description}, {speedup.value:g} times the speed."
    )
    return f"{text}{limit}.{change}{gain} Predicted, not measured."

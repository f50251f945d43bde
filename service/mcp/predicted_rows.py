"""Rows of predicted configurations in answers, from the predictor's rows."""

from collections.abc import Mapping
from typing import Any

from shardtune.api_schemas.base import Bound
from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.trials.predictions import Prediction, PredictionTable, SpeedPrediction
from shardtune.service.mcp.configs import short_config
from shardtune.service.mcp.schemas.answers import MemoryRow, PredictedConfig, Term
from shardtune.service.mcp.schemas.figures import GIB, SPEED, Figure, figure, rounded
from shardtune.service.wording import cluster_words

_SHOWN_TERMS = 5


def job_fields(table: PredictionTable, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of an answer that describe the training job, such as model, cluster, sequence length and
    precision."""
    precision_note = (table.precision_note,) if table.precision_note is not None else ()
    return {
        "model": table.model,
        "parameters": table.parameters,
        "cluster": cluster_words.cluster(table.cluster),
        "gpus": table.cluster.world_size,
        "sequence_length": table.sequence_length,
        "precision": table.precision,
        "optimizer": table.optimizer,
        "trained": table.adapter or "all weights",
        "notes": (*precision_note, *notes, *table.notes),
    }


def config_fields(prediction: Prediction) -> dict[str, Any]:
    """Return the fields of a predicted configuration."""
    memory, speed = prediction.memory, prediction.speed
    return {
        "rank": prediction.rank,
        "description": prediction.description,
        "config": short_config(prediction.config),
        "speed": None if speed is None else speed_figure(speed),
        "memory": memory_figure(prediction),
        "capacity_gib": rounded(memory.capacity_gib),
        "fits": memory.verdict,
        "bound_by": None if speed is None else speed.bound_by,
        "resource_fractions": {} if speed is None else _rounded(speed.resource_fractions),
        "mfu": None
        if speed is None or speed.mfu is None
        else figure(speed.mfu, "fraction of the vendor's peak", "predicted", speed_source(speed)),
    }


def _rounded(fractions: Mapping[Bound, float]) -> dict[Bound, float]:
    return {name: rounded(fraction) for name, fraction in fractions.items()}


def predicted_config(prediction: Prediction) -> PredictedConfig:
    """Return one predicted configuration."""
    return PredictedConfig(**config_fields(prediction))


def memory_row(prediction: Prediction) -> MemoryRow:
    """Return the memory of one predicted configuration."""
    change = prediction.cheapest_change
    largest = sorted(prediction.memory.terms, key=lambda term: -term.gib)[:_SHOWN_TERMS]
    return MemoryRow(
        **config_fields(prediction),
        tensors=figure(prediction.memory.allocated_gib, GIB, "predicted", "sum of the terms that are tensors"),
        margin_gib=rounded(prediction.memory.margin_gib),
        largest_micro_batch=prediction.largest_micro_batch,
        longest_sequence=prediction.longest_sequence,
        cheapest_change=None if change is None else f"{change.description}: {rounded(change.total_gib)} GiB, predicted",
        largest_terms_gib={term.name: rounded(term.gib) for term in largest if term.gib > 0},
    )


def memory_terms(prediction: Prediction) -> tuple[Term, ...]:
    """Return the terms whose sum is the predicted memory, largest first."""
    largest_first = sorted(prediction.memory.terms, key=lambda term: -term.gib)
    return tuple(Term(name=term.name, gib=rounded(term.gib), source=term.source) for term in largest_first if term.gib)


def speed_figure(speed: SpeedPrediction) -> Figure:
    """Return the predicted speed with its band."""
    ends = (speed.low_tokens_per_s_per_gpu, speed.high_tokens_per_s_per_gpu)
    return figure(speed.tokens_per_s_per_gpu, SPEED, "predicted", speed_source(speed), ends)


def speed_source(speed: SpeedPrediction) -> str:
    """Describe where a predicted speed comes from."""
    if speed.calibrated_on:
        return f"predictor, calibrated on {counted(speed.calibrated_on, 'trial')}"
    return "predictor, no trial"


def memory_figure(prediction: Prediction) -> Figure:
    """Return the predicted peak memory with its band."""
    memory = prediction.memory
    return figure(
        memory.total_gib, GIB, "predicted", "sum of the terms of the memory", (memory.low_gib, memory.high_gib)
    )

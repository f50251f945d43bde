"""Rows of predicted configurations and of their parts."""

from collections.abc import Sequence

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.mcp.schemas.answers import ExplainConfigAnswer, MemoryRow, PredictedConfig
from shardtune.service.mcp.schemas.figures import GIB, SECONDS, figure
from shardtune.service.python_api.rows import AnswerRow, cells

_SOURCE = "sum of the terms of the memory"


def predicted(row: PredictedConfig, config: TrialConfig) -> AnswerRow:
    """Return the table row of a predicted configuration."""
    return AnswerRow(
        cells(
            rank=row.rank,
            configuration=row.description,
            fits=row.fits,
            speed=row.speed,
            memory=row.memory,
            capacity_gib=row.capacity_gib,
            mfu=None if row.mfu is None else row.mfu.model_copy(update={"unit": "of the peak"}),
            bound_by=row.bound_by,
        ),
        config,
    )


def strategy(row: MemoryRow, config: TrialConfig) -> AnswerRow:
    """Return the table row of a strategy: its memory, and the micro batch, sequence length or change with which it
    would still fit.
    """
    return AnswerRow(
        cells(
            configuration=row.description,
            fits=row.fits,
            memory=row.memory,
            capacity_gib=row.capacity_gib,
            speed=row.speed,
            largest_micro_batch=figure(row.largest_micro_batch, "samples", "predicted", _SOURCE),
            longest_sequence=figure(row.longest_sequence, "tokens", "predicted", _SOURCE),
            cheapest_change=row.cheapest_change,
        ),
        config,
    )


def memory_terms(answer: ExplainConfigAnswer) -> Sequence[AnswerRow]:
    """Return the terms of a configuration's memory, largest first."""
    return [
        AnswerRow(cells(term=term.name, memory=figure(term.gib, GIB, "predicted", term.source), formula=term.source))
        for term in answer.memory_terms
    ]


def step_parts(answer: ExplainConfigAnswer) -> Sequence[AnswerRow]:
    """Return the parts of a configuration's step time, longest first."""
    whole = [] if answer.step_time is None else [AnswerRow(cells(part="whole step", time=answer.step_time))]
    source = "predictor, no trial" if answer.step_time is None else answer.step_time.source
    return whole + [
        AnswerRow(cells(part=name.replace("_", " "), time=figure(seconds, SECONDS, "predicted", source)))
        for name, seconds in answer.step_parts_s.items()
    ]


def differences(answer: ExplainConfigAnswer) -> Sequence[AnswerRow]:
    """Return a table row for each knob that differs between the fastest configuration and the explained one."""
    return [
        AnswerRow(cells(knob=name, configuration=_text(mine), fastest=_text(other)))
        for name, (mine, other) in answer.differences.items()
    ]


def _text(value: object) -> str:
    return "no such knob" if value is None else str(value)

"""Pipeline stages: the part of a model on each rank, and candidates in groups that divide the model alike."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.strategies.pipeline_parallel import blocks_of_stages
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS, SCHEDULES, PipelineSchedule, stages_of_rank
from shardtune.tuner.prediction.candidates import Array, Candidates
from shardtune.tuner.prediction.model_shape import ModelShape

Table = TypeVar("Table")


class StageLayout(NamedTuple):
    """Layout of a pipeline: the number of ranks, and the number of stages on each rank."""

    ranks: int
    virtual: int = 1
    schedule: PipelineSchedule = "1f1b"

    @property
    def is_v(self) -> bool:
        """Whether the first rank has both the first and the last stage (a V-shaped schedule)."""
        return FACTS[self.schedule].is_v


@dataclass(frozen=True, kw_only=True)
class StageShape(ModelShape):
    """Part of a model on one pipeline rank: some of its blocks, the token table with the first stage, the last norm and
    the head with the last."""

    model: ModelShape
    rank: int
    cut: StageLayout

    @property
    def is_first(self) -> bool:
        """Whether the pipeline rank has the first stage, with the token and position tables."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether the pipeline rank has the last stage, with the head and the loss."""
        return self.rank == (0 if self.cut.is_v else self.cut.ranks - 1)

    @property
    def block_parameters(self) -> int:
        """Number of elements of one block, the same as in the whole model."""
        return self.model.block_parameters

    @property
    def matrix_parameters(self) -> int:
        """Number of elements of the matrices in the pipeline rank's blocks."""
        return self.layers * self.model.matrix_parameters // self.model.layers

    @property
    def expert_parameters(self) -> int:
        """Number of elements of one block's experts, the same as in the whole model."""
        return self.model.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Number of elements of the token table, 0 on pipeline ranks without it."""
        return self.model.embedding_parameters if self.is_first else 0

    @property
    def head_parameters(self) -> int:
        """Number of elements of the output head, 0 on pipeline ranks without it."""
        return self.model.embedding_parameters if self.is_last else 0

    @property
    def outside_parameters(self) -> int:
        """Number of elements on the pipeline rank that are in no block; a tied table is in the first stage and in the
        last."""
        table = self.model.embedding_parameters
        tables = table + self.model.learned_positions * self.hidden
        norm_and_head = max(0, self.model.outside_parameters - tables)
        last = norm_and_head + (table if self.model.tied else 0)
        return (tables if self.is_first else 0) + (last if self.is_last else 0)

    @property
    def parameters(self) -> int:
        """Number of parameter elements of all stages of the pipeline rank."""
        return self.layers * self.block_parameters + self.outside_parameters


def blocks_by_cost(shape: ModelShape, stages: int) -> tuple[int, ...]:
    """Number of blocks of each pipeline stage if every stage has about as many parameters, the output head's included.
    Blocks are divided by cost as nanotron does, with the head counted in the last stage."""
    budget = (shape.layers * shape.block_parameters + shape.embedding_parameters) / stages
    counts, stage = [0] * stages, 0
    for block in range(shape.layers):
        middle = (block + 0.5) * shape.block_parameters
        if middle > budget * (stage + 1) and stage < stages - 1:
            stage += 1
        counts[stage] += 1
    return tuple(counts)


def rank_shapes(shape: ModelShape, cut: StageLayout, by_cost: bool = False) -> list[StageShape]:
    """Shapes of the model parts on all ranks of a pipeline, in order; `by_cost` gives the stages about equal numbers of
    parameters instead of equal numbers of blocks."""
    values = {field.name: getattr(shape, field.name) for field in fields(ModelShape)}
    # A tied table has one use in each of its two stages, so neither adds up two gradients.
    values["tied"] = False
    stage_count = cut.ranks * cut.virtual
    sizes = blocks_by_cost(shape, stage_count) if by_cost else blocks_of_stages(shape.layers, stage_count)
    shapes = []
    for rank in range(cut.ranks):
        rank_stages = stages_of_rank(rank, cut.ranks, cut.virtual, cut.is_v)
        has_head = cut.ranks * cut.virtual - 1 in rank_stages
        stage_values = values | {
            # A cut by cost may leave the last ranks without a block; they are counted as one of one block.
            "layers": max(1, sum(sizes[stage] for stage in rank_stages)),
            "vocab": shape.vocab if has_head else 0,
        }
        shapes.append(StageShape(**stage_values, model=shape, rank=rank, cut=cut))
    return shapes


def in_groups(c: Candidates, table: Callable[[Candidates, StageLayout], Table]) -> Table:
    """Compute a table of predictions separately for the candidates of each pipeline layout (numbers of ranks and
    stages, and the schedule), and join the tables in the candidates' order."""
    if (c.stages == 1).all():
        return table(c, StageLayout(1))
    layouts = np.stack([np.broadcast_to(axis, (c.size,)) for axis in (c.stages, c.virtual, c.schedule)], axis=1)
    rows, numbers = np.unique(layouts.astype(int), axis=0, return_inverse=True)
    cuts = [StageLayout(ranks, virtual, SCHEDULES[schedule]) for ranks, virtual, schedule in rows.tolist()]
    groups = [(np.flatnonzero(numbers.reshape(-1) == number), cut) for number, cut in enumerate(cuts)]
    parts = [(index, table(c.take(index), cut)) for index, cut in groups]

    def join(values: list[Array], indices: list[NDArray[np.intp]]) -> Array:
        joined = np.empty(c.size)
        for index, value in zip(indices, values, strict=True):
            joined[index] = value
        return joined

    return _join_tables([part for _, part in parts], lambda values: join(values, [index for index, _ in parts]))


def table_of_fullest_stage(tables: list[Table], weight: Callable[[Table], Array]) -> Table:
    """Select for each candidate the entries of one pipeline stage: the stage for which `weight` (such as its memory) is
    largest."""
    chosen = np.argmax(np.stack(np.broadcast_arrays(*(weight(table) for table in tables))), axis=0)

    def choose(values: list[Array]) -> Array:
        # `np.choose` takes at most 64 arrays (32 before numpy 2), and a pipeline may have more ranks.
        stacked = np.stack(np.broadcast_arrays(chosen, *values)[1:])
        return np.asarray(np.take_along_axis(stacked, chosen[np.newaxis], axis=0)[0])

    return _join_tables(tables, choose)


def _join_tables(tables: list[Table], join: Callable[[list[Array]], Array]) -> Table:
    """Join tables whose fields are arrays, or mappings to arrays, into one table in the candidates' order."""
    joined_fields: dict[str, Any] = {}
    for field in fields(tables[0]):  # type: ignore[arg-type]
        values = [getattr(table, field.name) for table in tables]
        if isinstance(values[0], dict):
            joined_fields[field.name] = {key: join([value[key] for value in values]) for key in values[0]}
        else:
            joined_fields[field.name] = join(values)
    return type(tables[0])(**joined_fields)

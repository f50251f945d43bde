"""Pipeline parallelism: assignment of blocks to pipeline stages, and valid numbers of stages."""

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import AdamWBf16, OptimizerSchema


def blocks_of_stages(blocks: int, stages: int) -> tuple[int, ...]:
    """Return the number of the model's blocks in each pipeline stage, in order. If the blocks do not divide evenly, the
    first stages get one more, because the last stage also computes output head and loss."""
    return tuple(blocks // stages + (stage < blocks % stages) for stage in range(stages))


def check_ranks(size: int, ranks: int) -> None:
    """Check that the number of pipeline stages divides the number of ranks.

    Raises:
        ValueError: it does not.
    """
    if ranks % size:
        raise _rejected(size, f"must divide the number of ranks ({ranks}); use 1 or a divisor")


def check(size: int, micro_batches: int, model: ModelSpec | None = None) -> None:
    """Reject a number of pipeline stages that cannot work, as far as is known before the model is built.
    `micro_batches` is the number of micro batches per step, which pass through the stages.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    if model is not None and model.is_own:
        raise _rejected(size, "spreads the blocks of transformers' models, and your own code makes this one; use 1")
    if micro_batches < size:
        raise _rejected(
            size,
            f"needs as many micro batches in a step, and there are {micro_batches}; use a smaller micro_batch or fewer stages",
        )


def check_blocks(size: int, blocks: int | None, note: str | None, virtual: int = 1) -> None:
    """Reject pipeline stages that the summary of the model does not allow (`pipeline_blocks`, `pipeline_note`). Each
    rank holds `virtual` of them.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    if note is not None:
        raise _rejected(size, f"is not for this model: {note}; use 1")
    if blocks is None:
        raise _rejected(size, "is only for models whose blocks a worker has looked at; use 1")
    if blocks < size:
        raise _rejected(size, f"needs a block for each stage, and the model has {blocks}; use at most {blocks}")
    if blocks < size * virtual:
        raise ValueError(
            f"pipeline_virtual_stages ({virtual}) on {size} ranks needs {size * virtual} blocks, and the model has {blocks}; use at "
            f"most {blocks // size}"
        )


def check_tied(size: int, optimizer: OptimizerSchema) -> None:
    """Reject pipeline stages of a model with tied weights if the optimizer rounds stochastically. Two stages would hold
    a copy of the tied weights each, and the copies would become different.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and isinstance(optimizer, AdamWBf16):
        raise _rejected(
            size,
            f"holds tied weights twice, and optimizer.kind ({optimizer.kind!r}) would round the copies apart; use 1, or adamw",
        )


def _rejected(size: int, why: str) -> ValueError:
    return ValueError(f"pipeline_parallel ({size}) {why}")

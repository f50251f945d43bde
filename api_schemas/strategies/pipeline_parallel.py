"""Pipeline parallelism: how blocks are spread over stages, which numbers of stages a model can have, and why others not."""

from shardtune.api_schemas.training.models import ModelSpec


def blocks_of_stages(blocks: int, stages: int) -> tuple[int, ...]:
    """Of each stage in order; the first ones take what is left over, since the last has the head and the loss."""
    return tuple(blocks // stages + (stage < blocks % stages) for stage in range(stages))


def check_ranks(size: int, ranks: int) -> None:
    """Raises ValueError: so many stages do not divide the ranks."""
    if ranks % size:
        raise _rejected(size, f"must divide the number of ranks ({ranks}); use 1 or a divisor")


def check(size: int, micro_batches: int, model: ModelSpec | None = None) -> None:
    """Reject what does not come out, as far as is known; `micro_batches`: of one step, which go through the stages.

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
    """The same of what a profile says of the model (`pipeline_blocks`, `pipeline_note`), with so many stages on each rank.

    Raises:
        ValueError: as `check`.
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


def _rejected(size: int, why: str) -> ValueError:
    return ValueError(f"pipeline_parallel ({size}) {why}")

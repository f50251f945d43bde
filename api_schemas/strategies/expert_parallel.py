"""Expert parallelism: valid numbers of ranks that divide a model's experts."""

from shardtune.api_schemas.training.models import ModelSpec


def check(size: int, shard: int, tensor: int) -> None:
    """Reject an `expert_parallel` size that does not divide the shard group. `shard` is the number of ranks in the
    group (`dp_shard`); each `size` adjacent ranks of it divide the experts.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    if tensor > 1:
        raise _rejected(size, f"with tensor_parallel ({tensor}), which splits no experts; set one of them to 1")
    if shard % size:
        raise _rejected(size, f"must divide dp_shard ({shard}), whose ranks divide the experts; use 1 or a divisor")


def check_model(size: int, model: ModelSpec | None) -> None:
    """Reject expert parallelism for a model that has no experts, as far as is known before the model is built.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and model is not None and model.is_own:
        raise _rejected(size, "divides the experts of transformers' models, and your own code makes this one; use 1")


def check_experts(size: int, shard: int, experts: int | None, width: int | None, note: str | None) -> None:
    """Reject an `expert_parallel` size that the summary of the model does not allow, by its fields `experts`,
    `expert_width` and `expert_note`.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    if note is not None:
        raise _rejected(size, f"is not for this model: {note}; use 1")
    if experts is None or width is None:
        raise _rejected(size, "is only for models whose experts a worker has looked at; use 1")
    if experts % size:
        raise _rejected(size, f"must divide the experts of a layer ({experts}); use 1 or a divisor")
    if sharded_axis(size, shard, experts, width) is None:
        raise _rejected(
            size,
            f"leaves {experts // size} experts to {shard // size} ranks, which divide neither them nor their width ({width}); "
            f"use a dp_shard ({shard}) that does",
        )


def sharded_axis(size: int, shard: int, experts: int, width: int) -> int | None:
    """Return the axis along which FSDP2 shards a rank's part of the stacked expert weights. It is 0 if the number of
    whole experts divides evenly, 1 if only the rows of each expert do, and None if neither does."""
    over = shard // size
    if experts // size % over == 0:
        return 0
    return 1 if width % over == 0 else None


def _rejected(size: int, why: str) -> ValueError:
    return ValueError(f"expert_parallel ({size}) {why}")

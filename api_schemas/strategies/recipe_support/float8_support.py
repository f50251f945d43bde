"""Backends, mesh axes and knobs with which float8 can be trained, and the reasons why others cannot."""

from collections.abc import Iterable, Mapping

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.training.float8 import Float8Recipe

_WHY = {
    "context_parallel": "gives each rank a part of every sample, so that scales come from parts",
    "tensor_parallel": "splits matrices, so that scales come from parts",
    "pipeline_parallel": "cuts the model into stages, which nobody has compared in float8",
    "expert_parallel": "divides experts, which are no linear layers",
}
"""Reasons why float8 cannot be trained if several ranks form a parallel axis, by the field that sets the size of the
axis."""
ZERO_STAGES = (1, 2)
"""ZeRO stages in which float8 training gives the same result as with the other backends."""


def check(config: TrialConfig, recipe: Float8Recipe | None) -> None:
    """Reject a configuration under which float8 training would differ from that of the other backends, and gathers in
    float8 for a workload without them.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    strategy = config.strategy
    if isinstance(strategy, Fsdp2Config):
        float8_gather.check_training(strategy.float8_gather, recipe)
    if recipe is None:
        return
    check_axis("context_parallel", config.context_parallel, recipe)
    check_axis("tensor_parallel", strategy.model_parallel // strategy.stages, recipe)
    check_axis("pipeline_parallel", strategy.stages, recipe)
    check_axis("expert_parallel", strategy.expert_ranks, recipe)
    if isinstance(strategy, ZeroConfig) and strategy.stage not in ZERO_STAGES:
        raise ValueError(
            f"strategy.stage ({strategy.stage}) {_ZERO_3.format(recipe=recipe)}; use stage 1 or 2, ddp, fsdp1 or fsdp2"
        )
    if getattr(strategy, "deepcompile", False):
        raise ValueError(
            f"deepcompile (true) with workload.float8 ({recipe!r}) was not compared with other backends; set it to false"
        )


_ZERO_3 = "cannot train with workload.float8 ({recipe!r}): it frees weights that torchao keeps for backward"


def dropped_note(backends: Iterable[str], knobs: Mapping[str, object], recipe: Float8Recipe | None) -> tuple[str, ...]:
    """Return a note that the search leaves out ZeRO-3, because it cannot train in float8. Empty if the search would not
    have tried ZeRO-3."""
    stated = knobs.get("stage")
    stages = stated if isinstance(stated, list | tuple) else (3 if stated is None else stated,)
    if recipe is None or "zero" not in backends or 3 not in stages:
        return ()
    return (f"space.knobs.stage (3) {_ZERO_3.format(recipe=recipe)}; it is not searched",)


def check_axis(name: str, size: int, recipe: Float8Recipe | None) -> None:
    """Reject a size above 1 of one parallel axis if the workload trains in float8.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and recipe is not None:
        raise ValueError(f"{name} ({size}) {_WHY[name]} (workload.float8: {recipe}); use 1, or leave out float8")


def can_train(config: TrialConfig, recipe: Float8Recipe | None) -> bool:
    """Whether the configuration's training in float8 gives the same result as with the other backends."""
    try:
        check(config, recipe)
    except ValueError:
        return False
    return True

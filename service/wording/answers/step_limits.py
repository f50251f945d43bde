"""Words for the resources that limit a predicted step."""

from shardtune.api_schemas.trials.predictions import SpeedPrediction

_LEAST_NAMED = 0.1
"""Least fraction of a step with which a resource is named beside the largest one."""


def limits(speed: SpeedPrediction) -> str:
    """Name the resource that takes most of a step, and further ones that take a tenth of it or more:
    `compute (66 % of the step), offload to the host (20 %)`.
    """
    shares = speed.resource_fractions
    if speed.bound_by not in shares:
        return speed.bound_by
    others = (
        f"{name} ({share:.0%})" for name, share in shares.items() if name != speed.bound_by and share >= _LEAST_NAMED
    )
    return ", ".join((f"{speed.bound_by} ({shares[speed.bound_by]:.0%} of the step)", *others))

"""Decide whether hosts build DeepSpeed's CPU Adam at their start: a study that cannot offload need not wait for it."""

from collections.abc import Mapping

from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_request import StudyRequest

_KNOB = "offload_optimizer"


def may_offload_optimizer(request: StudyRequest) -> bool:
    """Whether at least one configuration of a study may keep its optimizer states in host memory (offload).

    If True, each host of a gang builds DeepSpeed's CPU Adam before the worker takes runs. If the result is False and a
    trial offloads nevertheless, the trial's first rank builds it. A worker on one machine waits for such a trial anyway.
    """
    baseline = request.baseline
    if isinstance(baseline, TrialConfig):
        offloads = isinstance(baseline.strategy, ZeroConfig) and baseline.strategy.offload_optimizer is not None
    else:
        # A file of another program, such as a DeepSpeed JSON; read in full by the service.
        offloads = isinstance(baseline, Mapping) and "offload" in repr(baseline)
    if offloads or "zero" not in request.space.backends or not request.workload.optimizer.offloads:
        return offloads
    named = request.space.knobs.get(_KNOB)
    values = named if isinstance(named, list | tuple) else (named,)
    return any(value != "none" for value in values)

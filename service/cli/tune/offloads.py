"""Decide whether a study may need DeepSpeed's CPU Adam, whose build takes a minute before the first trial."""

from collections.abc import Mapping

from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_request import StudyRequest

_KNOB = "offload_optimizer"


def may_offload_optimizer(request: StudyRequest) -> bool:
    """Whether at least one configuration of a study may keep its optimizer states in host memory (offload).

    If True, the worker builds DeepSpeed's CPU Adam before the first trial. If the result is False and a trial offloads
    nevertheless, the trial's first rank builds it.
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

"""What can be said of a study before any process is started: the service would say the same, ten seconds later."""

from pathlib import Path

from shardtune.api_schemas.formatting import field_line
from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.studies import StudyRequest, StudySpec
from shardtune.api_schemas.workload import RECIPES
from shardtune.service.cli.errors import InputError
from shardtune.service.http.errors import Invalid
from shardtune.service.studies import validation
from shardtune.service.studies.chosen_recipe import stated_recipe

CPU_RANKS = 2
"""Of a machine without GPUs, where nobody says how many."""
_NVIDIA = Path("/dev/nvidiactl")
_PLENTY_GIB = 1e5
"""Memory is what the worker has; nothing here asks for it."""


def check(spec: StudyRequest, ranks: int | None) -> None:
    """Refuse what no worker could run.

    Raises:
        InputError: names field, value and remedy.
    """
    cluster = _cluster(spec, ranks)
    if cluster is None:
        return
    # Which recipe `auto` is depends on the device, and so does whether the baseline's dtypes are the study's: what every
    # recipe refuses is wrong on any.
    named, _ = stated_recipe(spec)
    refused = [_refusal(spec.with_recipe(recipe), cluster) for recipe in ([named] if named else RECIPES.values())]
    first = refused[0]
    if first is not None and all(refused):
        raise InputError(*(field_line(item.model_dump()) for item in first.errors))


def _refusal(spec: StudySpec, cluster: Cluster) -> Invalid | None:
    try:
        validation.check(spec, cluster)
    except Invalid as error:
        return error
    return None


def _cluster(spec: StudyRequest, ranks: int | None) -> Cluster | None:
    """What it will run on; None where only the worker can tell."""
    if isinstance(spec.cluster, Cluster):
        return spec.cluster
    if _NVIDIA.exists() or spec.cluster != "local":
        return None
    return Cluster(device="cpu", gpus_per_node=ranks or CPU_RANKS, memory_gib=_PLENTY_GIB, host_memory_gib=_PLENTY_GIB)

"""The recipe that a new study trains: the stated one, else that of its baseline's own tool, else the device's."""

from collections.abc import Sequence

from shardtune.api_schemas.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.studies import StudyRequest
from shardtune.api_schemas.workload import Recipe
from shardtune.tuner import baseline


def stated_recipe(request: StudyRequest) -> tuple[Recipe | None, str | None]:
    """What the request says of it, if anything, and a note where its baseline says it."""
    if request.workload.recipe is not None:
        return request.workload.recipe, None
    return baseline.meant_recipe(request.baseline) or (None, None)


def chosen_recipe(request: StudyRequest, devices: Sequence[DeviceDtypes]) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe on these devices, and what its user should know of it."""
    stated, of_baseline = stated_recipe(request)
    recipe, note = decide(stated, devices)
    return recipe, tuple(filter(None, [of_baseline, note]))

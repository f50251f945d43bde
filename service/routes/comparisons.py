"""Routes that compare configurations."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.studies.comparisons import MOST_COMPARED, Comparison
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.process.context import ContextDep
from shardtune.service.studies.comparison import compare

router = APIRouter(prefix="/v1/comparisons", tags=["studies"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("")
def read_comparison(
    context: ContextDep,
    pick: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=MOST_COMPARED,
            description="Configurations, at most four: a study's id (its result), `study-id:number` (a trial), a retune's id (its study's result), a "
            "`target_key` (its recommendation).",
            examples=[["study-0123456789ab", "study-0123456789ab:0"]],
        ),
    ],
) -> Comparison:
    """Compare configurations of one or several studies: their parameters and measurements."""
    return compare(context, pick)

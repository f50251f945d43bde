"""Reasons why a configuration was not rehearsed, from what its code raised."""

from shardtune.api_schemas.printable_text import printable
from shardtune.api_schemas.trials.rehearsals import RehearsalCode, RehearsalProblem
from shardtune.workers.rank.own_code import failures

_LONGEST = 500


def problem_of(error: BaseException) -> RehearsalProblem:
    """Describe an exception that ended a rehearsal (a trial on tensors without values) as a problem to report. A
    ValueError that names a field counts as a rejection of the configuration by the strategy."""
    text = printable(" ".join(str(error).split()))[:_LONGEST]
    rejection = RehearsalProblem.misfit(text)
    if isinstance(error, ValueError) and rejection.field is not None:
        return rejection
    failure = failures.failure_of(error)
    code: RehearsalCode = "error"
    if failure.code in ("memory", "data_dependent"):
        code = failure.code
    elif failure.code == "custom_operator":
        code = "unsupported"
    return RehearsalProblem(code=code, message=failure.message)

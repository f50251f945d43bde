"""Note on the batches that a trace holds, where samples have several lengths."""

from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.diagnosis import Diagnosis


def note(diagnosis: Diagnosis, workload: Workload) -> str | None:
    """Sentence on which batches the trace recorded; None where all samples have one length, or it is unknown what was
    recorded."""
    plan, recorded = workload.sample_plan, diagnosis.recorded
    if plan is None or recorded is None:
        return None
    shortest, longest = (limit(map(limit, plan.cycle)) for limit in (min, max))
    batches = f"the {plan.steps} batches of {shortest:,} to {longest:,} tokens a sample that all trials repeat"
    whole, rest = divmod(recorded.steps, plan.steps)
    if rest == 0:
        traced = f"the trace holds {batches}, {'once' if whole == 1 else f'{whole} times'}: its means compare with the step time"
    else:
        traced = (
            f"the trace holds {recorded.steps} steps of {batches}, no whole number of times: its means are those of these "
            "steps; restart the service and the worker with one release to trace whole cycles"
        )
    peak = "rows of several samples" if plan.data.is_packed else f"the longest samples ({plan.data.longest:,} tokens)"
    return f"data: {traced}. Memory is recorded in a step of {peak}"

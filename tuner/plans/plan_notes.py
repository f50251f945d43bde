"""Notes of a plan: the assumptions behind its rows, and what was not checked."""

from collections.abc import Sequence

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines import networks
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.tuner.plans.kind_rows import PlanBasis, PlanKind
from shardtune.tuner.plans.layouts import is_near


def plan_notes(basis: PlanBasis, kinds: Sequence[PlanKind], rows: Sequence[PlanRow]) -> tuple[str, ...]:
    """Return the notes of a plan with these rows over kinds of GPUs."""
    request, begins, study = basis.request, basis.begins, basis.study
    goodput = request.goodput
    has_answers = study is not None and bool(study.answers)
    unanswered, unmeasured = (
        (" without an answer of the study", "that the study did not measure ") if has_answers else ("", "")
    )
    notes = [
        f"{counted(basis.global_batch, 'sample')} a step for every number of GPUs{unanswered}, as near as the ranks divide it",
        f"goodput: {goodput.overhead:.0%} over step time, {goodput.failures_per_gpu_hour:g} failures per GPU-hour, "
        f"{goodput.checkpoint_s:g} s a checkpoint, {goodput.restart_s:g} s a restart",
        "predicted or projected, unless a row says that it was measured; bands are 90 %",
        f"days are those of UTC, and the run starts on {begins.date()} at {begins:%H:%M}",
        f"layouts {unmeasured}are not compiled and compute the loss of all logits, with AdamW; `predict` ranks the others, too",
    ]
    if request.network is not None:
        notes.append(networks.network_note(request.network, request.gpus_per_node))
    leaves = networks.leaf_switches_note(request.nodes_per_leaf, request.oversubscription)
    notes += [] if leaves is None else [leaves]
    unpriced = [kind.name for kind in kinds if request.price_of(kind.name) is None]
    if not request.prices:
        notes.append("no prices were given: the cheapest row is that of the fewest GPU-hours")
    elif unpriced:
        notes.append(f"no price of {', '.join(unpriced)}: not compared by cost")
    evidence = {row.evidence for row in rows}
    if len(evidence) > 1 and "predicted" in evidence:
        notes.append(
            "the choices compare predicted rows with others; a predicted speed may be further off, as its band shows"
        )
    notes += _batch_note(rows)
    for kind in kinds:
        notes += [f"{kind.name}: {note}" for note in kind.resolved.notes()]
    return (*notes, *(() if study is None else study.notes))


def _batch_note(rows: Sequence[PlanRow]) -> list[str]:
    """Note on rows that differ in their batch, as a plan's do not without a study."""
    least, most = min((row.global_batch for row in rows), default=1), max((row.global_batch for row in rows), default=1)
    if is_near(least, most):
        return []
    return [
        f"rows have {least:,} to {most:,} samples a step, and more of them are often faster; state global_batch to compare "
        "equal ones"
    ]

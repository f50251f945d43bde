"""Restrict a study's search to the backends that the user's training script supports."""

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.db.tables.studies import StudyRow


def restrict_backends(study: StudyRow, model_summary: ModelSummary) -> str | None:
    """Remove from a study's search space the backends that the user's training script does not support. Returns the
    reason why the study cannot run then, or None if it can.
    """
    if model_summary.backends is None:
        return None
    supported = " and ".join(model_summary.backends)
    if study.baseline is not None and study.baseline.backend not in model_summary.backends:
        return (
            f"baseline is a configuration of {study.baseline.backend}, and the script takes {supported} only, so it was not tried; "
            "give a baseline of that backend, or none"
        )
    requested = study.spec.space.backends
    # The script names its backends only now: the model summary is the first run that executes it.
    remaining = tuple(backend for backend in requested if backend in model_summary.backends)
    if not remaining:
        return f"space.backends ({', '.join(requested)}) has nothing that the script takes ({supported}); name one of these"
    if remaining != requested:
        study.spec = study.spec.model_copy(
            update={"space": study.spec.space.model_copy(update={"backends": remaining})}
        )
        study.notes = (*study.notes, f"the script takes {supported} only, so nothing else is tried")
    return None

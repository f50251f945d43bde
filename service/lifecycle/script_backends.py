"""A training script of the user's own says which backends it can take: nothing else is tried in its study."""

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.db.tables.studies import StudyRow


def narrow(study: StudyRow, model_summary: ModelSummary) -> str | None:
    """Leave the study what its script takes; why nothing is left, where that is so."""
    if model_summary.backends is None:
        return None
    taken = " and ".join(model_summary.backends)
    if study.baseline is not None and study.baseline.backend not in model_summary.backends:
        return (
            f"baseline is a configuration of {study.baseline.backend}, and the script takes {taken} only, so it was not tried; "
            "give a baseline of that backend, or none"
        )
    asked = study.spec.space.backends
    left = tuple(backend for backend in asked if backend in model_summary.backends)
    if not left:
        return f"space.backends ({', '.join(asked)}) has nothing that the script takes ({taken}); name one of these"
    if left != asked:
        study.spec = study.spec.model_copy(update={"space": study.spec.space.model_copy(update={"backends": left})})
        study.notes = (*study.notes, f"the script takes {taken} only, so nothing else is tried")
    return None

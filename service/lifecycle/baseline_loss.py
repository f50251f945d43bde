"""Change a baseline's loss in chunks to the whole loss, where a worker finds that the model cannot have chunks."""

from shardtune.api_schemas.strategies.losses import DEFAULT_CHUNK
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.db.tables.studies import StudyRow

_OWN_KEYS = frozenset(["strategy", "kind"])


def measure_whole(study: StudyRow, model_summary: ModelSummary) -> None:
    """Measure a study's baseline with all logits, with a note, if it was read from a file of TRL, whose own loss in chunks
    takes more models than a trial's. A baseline in Shardtune's words stays, so that its trial names the fault."""
    baseline, given = study.baseline, study.spec.baseline
    if baseline is None or model_summary.loss_note is None or not baseline.has_chunked_loss:
        return
    if not isinstance(given, dict) or _OWN_KEYS & given.keys():
        return
    whole = {"loss": "full", "loss_chunk": DEFAULT_CHUNK, "loss_compile": False}
    study.baseline = baseline.model_copy(update=whole)
    reason = f"the baseline is measured with all logits, not in chunks as its file means: {model_summary.loss_note}"
    study.notes = (*study.notes, reason)

"""Reasons of studies: why a search stopped, why a study failed or was cancelled, and why it waits."""

from enum import StrEnum

from shardtune.api_schemas.base import Schema


class StudyReasonCode(StrEnum):
    """Code of the reason why a search stopped, why a study failed or was cancelled, or why a running study gets no
    worker. Programs compare codes. The sentence that comes with a code is for people and may change."""

    ALL_TRIED = "all_tried"
    """Every configuration that may fit was tried, so that more trials or time would not extend the search."""
    TRIALS_USED = "trials_used"
    """All trials of the budget have run."""
    GPU_SECONDS_USED = "gpu_seconds_used"
    """The search has used the budget's GPU-seconds, except those that are kept for the final comparison."""
    WALL_SECONDS_USED = "wall_seconds_used"
    """The time since the study's start has reached the budget's limit, less the time that is kept for the final
    comparison."""
    LITTLE_GAIN = "little_gain"
    """The speed that further trials are expected to gain is too small."""
    COSTS_MORE = "costs_more"
    """The next trial is expected to take more GPU-hours than its gain would save in the planned training run."""
    CHALLENGERS_RAN = "challengers_ran"
    """The recommended configuration of a retune, and all challengers that may be faster, were measured."""
    WAITS_FOR_WORKER = "waits_for_worker"
    """A live worker has the study's hardware, but it cannot execute the study's runs."""
    WORKER_ENDS_TOO_SOON = "worker_ends_too_soon"
    """A live worker can execute the study's runs, but it must end before the next run would."""
    NO_WORKER = "no_worker"
    """No suitable worker came in time, or none is left that could run the study."""
    MODEL_REJECTED = "model_rejected"
    """The worker does not know or does not allow the model; or the model's training script supports none of the study's
    backends."""
    MODEL_NOT_SUMMARIZED = "model_not_summarized"
    """The model could not be built to count its parameters and FLOPs."""
    EMPTY_SPACE = "empty_space"
    """The search space holds no configuration for this model and cluster."""
    NOTHING_FEASIBLE = "nothing_feasible"
    """No configuration fits into memory and trains."""
    NO_AGREEMENT = "no_agreement"
    """No two configurations gave the same losses, so that no configuration can be trusted to train correctly."""
    INCUMBENT_FAILED = "incumbent_failed"
    """The recommended configuration of a retune or canary cannot be run any longer, or could not be measured."""
    CANCELLED = "cancelled"
    """A user cancelled or deleted the study, or the service withdrew it."""
    INTERNAL_ERROR = "internal_error"
    """An internal error of the service ended the study; the service's log has the traceback."""


class StudyReason(Schema):
    """Reason why a search stopped, why a study failed or was cancelled, or why it waits: a code, a sentence and
    details."""

    code: StudyReasonCode
    text: str
    """Short sentence that states the reason for people, without a full stop."""
    details: str = ""
    """Details of the reason, such as the losses that differ; empty if nothing more is known."""

    @property
    def sentence(self) -> str:
        """Reason as text: the sentence, followed by the details in brackets."""
        return f"{self.text} ({self.details})" if self.details else self.text

"""Check that a worker may train a model: architectures of its transformers, and own code that its owner allows."""

from shardtune.api_schemas.machines.hardware import Offer
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import invalid, suggest_names


def check_model(model: ModelSpec, worker: WorkerRow) -> None:
    """Reject a study whose model architecture is not in the worker's release of transformers, or whose own model code
    the worker's owner has not allowed.

    Raises:
        Invalid: lists similar architectures, or the allowed code.
    """
    if model.is_own:
        _check_own_code(model, worker)
    else:
        _check_model_type(str(model.model_type), worker)


def _check_own_code(model: ModelSpec, worker: WorkerRow) -> None:
    if allows_model(worker.offer, model):
        return
    kind, name, allowed, option = (
        ("entry_point", model.entry_point, worker.offer.own_models, f"--allow-model {model.entry_point}")
        if model.entry_point is not None
        else ("script", model.script, worker.offer.own_scripts, f"--allow-script {model.script}=COMMAND")
    )
    allowed_list = ", ".join(allowed) or "none"
    raise invalid(
        f"model.{kind}",
        name,
        f"{kind} ({name!r}) is not allowed on worker {worker.name}; allowed there: {allowed_list}. "
        f"The worker's owner can allow it with {option}",
        code="model_not_allowed",
    )


def allows_model(offer: Offer, model: ModelSpec) -> bool:
    """Whether the worker's owner allows the study's own model code; architectures of transformers are always
    allowed.
    """
    if model.entry_point is not None:
        return model.entry_point in offer.own_models
    return model.script is None or model.script in offer.own_scripts


def _check_model_type(model_type: str, worker: WorkerRow) -> None:
    """Reject a model architecture that the worker's transformers release does not contain."""
    # An empty list means that the worker did not report its architectures, so nothing can be rejected.
    known_types = worker.inventory.causal_lm_types
    if known_types and model_type not in known_types:
        hint = suggest_names(
            model_type, known_types, f"it knows {len(known_types)}, such as {', '.join(sorted(known_types)[:8])}"
        )
        raise invalid(
            "model.config.model_type",
            model_type,
            f"model_type ({model_type!r}) is not a causal language model of the transformers on worker {worker.name} "
            f"({worker.offer.fingerprint.transformers}); {hint}",
            code="unknown_model_type",
        )

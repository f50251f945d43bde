"""What can be said of a study's model before a worker looks at it: rejected with the reason, or remarked upon."""

from shardtune.api_schemas.studies.study import StudySpec
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.service.http.errors import from_value_error, invalid
from shardtune.tuner.prediction import model_shape, trainable


def check_architecture(model: ModelSpec) -> None:
    """Reject an architecture that a trial cannot train, and a file that leaves dimensions to transformers' defaults, which
    nobody means; of families that are known in closed form, since only of those the names are.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    if model.is_own:
        return
    try:
        trainable.check(model)
        if model.model_type in model_shape.FAMILIES:
            model_shape.from_config(model.trained_config)
    except ValueError as error:
        raise from_value_error("model.config", error) from None


def check(spec: StudySpec) -> None:
    """Reject what a trial cannot train.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    check_architecture(spec.model)
    if spec.model.is_own:
        return
    on_cpu = not isinstance(spec.cluster, str) and spec.cluster.device == "cpu"
    if spec.workload.attention == "flash_attention_2" and on_cpu:
        message = "attention ('flash_attention_2') runs on GPUs only; use sdpa or eager"
        raise invalid("workload.attention", "flash_attention_2", message)


def remarks(model: ModelSpec) -> tuple[str, ...]:
    """What the reader of the result should know of what is trained."""
    if model.is_own:
        return ()
    strays = model_shape.strays(model.trained_config)
    if model.trained_config is model.config:
        return strays
    whole = str(model.config["model_type"])
    return (
        *strays,
        f"{whole} is multimodal: its text part ({model.model_type}) is trained and measured, nothing else of it",
    )

"""Check the model of a new study before any worker reads the model: reject it with a reason, or add notes."""

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import pipeline_parallel
from shardtune.api_schemas.strategies.recipe_support import fp16_support
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.training import adapter_targets, attention_dtypes, float8_checks, quantization
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import PACKED
from shardtune.api_schemas.training.sample_packing import models as packed_models
from shardtune.service.http.errors import invalid, invalid_from_value_error
from shardtune.tuner.prediction import trainable
from shardtune.tuner.prediction.shapes import config_shape


def check_architecture(model: ModelSpec) -> None:
    """Reject a model architecture that no trial can train, and a model config that omits dimensions.

    Omitted dimensions would get transformers' defaults, which nobody intends. They are checked for the model families
    whose parameters the predictor can compute from the config.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    if model.is_own:
        return
    try:
        trainable.check(model)
        # Other families have other names for their dimensions, so omissions cannot be told from unknown names.
        if model.model_type in config_shape.FAMILIES:
            config_shape.from_config(model.trained_config)
    except ValueError as error:
        raise invalid_from_value_error("model.config", error) from None


def check(spec: StudySpec, cluster: Cluster) -> None:
    """Reject a study whose model no trial could train.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    check_architecture(spec.model)
    check_adapter(spec)
    check_data(spec)
    on_cpu = not isinstance(spec.cluster, str) and spec.cluster.device == "cpu"
    check_float8(spec, cluster)
    check_fp16(spec)
    check_tied(spec)
    if spec.model.is_own:
        return
    if spec.workload.attention == "flash_attention_2" and on_cpu:
        message = "attention ('flash_attention_2') runs on GPUs only; use sdpa or eager"
        raise invalid("workload.attention", "flash_attention_2", message)
    check_attention(spec)


def check_attention(request: StudyRequest) -> None:
    """Reject flash attention in a precision for which it has no kernels, as far as the precision is known.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    if request.model.is_own:
        return
    workload = request.workload
    try:
        attention_dtypes.check(workload.attention, workload.precision)
    except ValueError as error:
        raise invalid("workload.attention", workload.attention, str(error)) from None


def check_adapter(request: StudyRequest) -> None:
    """Reject an adapter that cannot be put on the study's model, as far as the model's config shows it.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    workload = request.workload
    try:
        adapter_targets.check_model(workload.adapter, request.model)
        if workload.precision is not None:
            precision = workload.precision
            quantization.check_precision(precision.name, precision.autocast, quantization_of(workload.adapter))
    except ValueError as error:
        raise invalid_from_value_error("workload", error) from None


def check_float8(request: StudyRequest, cluster: Cluster | None = None) -> None:
    """Reject float8 on a model, precision or device that cannot train with it, as far as these are known.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    try:
        float8_checks.check_model(request.model, request.workload.float8)
        float8_checks.check_precision(request.workload, device=None if cluster is None else cluster.device)
    except ValueError as error:
        raise invalid_from_value_error("workload.float8", error) from None


def check_fp16(request: StudyRequest) -> None:
    """Reject a workload in float16 that no backend trains.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    try:
        fp16_support.check_workload(request.workload, request.model)
    except ValueError as error:
        raise invalid_from_value_error("workload.precision", error) from None


def check_tied(request: StudyRequest) -> None:
    """Reject a study that limits its search to pipeline stages if the model ties its input and output embeddings and
    the optimizer's rounding would make the two copies of them differ. Checked as far as the model's config shows it.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    limit = request.space.knobs.get("pipeline_parallel")
    if limit is None or request.model.is_own:
        return
    shape = config_shape.shape_if_known(request.model.trained_config)
    named = limit if isinstance(limit, tuple) else (limit,)
    sizes = [int(size) for size in named if isinstance(size, int | float)]
    if shape is None or not shape.tied or not sizes:
        return
    try:
        pipeline_parallel.check_tied(max(sizes), request.workload.optimizer)
    except ValueError as error:
        raise invalid("space.knobs.pipeline_parallel", max(sizes), f"space.knobs.{error}") from None


def check_data(request: StudyRequest) -> None:
    """Reject samples of several lengths if the user's own code makes the batches, and reject packed samples for a
    model in which samples packed together would attend to each other.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    data = request.workload.data
    if data is not None and request.model.is_own:
        raise invalid(
            "workload.data",
            data.layout,
            f"data ({data.describe()}) describes samples that a trial makes, and your own code makes its batches itself; leave "
            "out data",
        )
    try:
        packed_models.check(data, request.model)
    except ValueError as error:
        raise invalid("workload.data.layout", PACKED, str(error)) from None


def model_notes(model: ModelSpec) -> tuple[str, ...]:
    """Notes about the model for the reader of a study's result, for example that only the text part of a multimodal
    model is trained.
    """
    if model.is_own:
        return ()
    unknown_keys_notes = config_shape.unknown_keys(model.trained_config)
    if model.trained_config is model.config:
        # A multimodal config contains the text model's config, which alone is trained.
        return unknown_keys_notes
    full_type = str(model.config["model_type"])
    return (
        *unknown_keys_notes,
        f"{full_type} is multimodal: its text part ({model.model_type}) is trained and measured, nothing else of it",
    )

"""Reading of the `zero_optimization` section of a DeepSpeed JSON: DeepSpeed 0.19.8's key names, defaults and old
spellings."""

from pydantic import ValidationError

from shardtune.api_schemas.strategies import Offload, ZeroConfig
from shardtune.tuner.baseline.section import Section, in_words

_SILENT_ZERO_KEYS = frozenset(
    [
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "pipeline_loading_checkpoint",
        "ignore_unused_parameters",
        "log_trace_cache_warnings",
    ]
)
_STAGE3_NAMES = ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance")


def read_zero(section: Section) -> tuple[ZeroConfig, list[str]]:
    """Read the ZeRO strategy from a `zero_optimization` section of stage 1 to 3, with notes on keys without effect.

    Raises:
        ValueError: a value of the wrong type, or a value that would change the training's results.
    """
    stage = section.integer("stage")
    values: dict[str, object] = {"stage": stage}
    for key in ("reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "zero_hpz_partition_size"):
        values[key] = section.integer(key)
    for key in _STAGE3_NAMES:
        old = section.integer(key)
        new = section.integer(f"stage3_{key}")
        values[f"stage3_{key}"] = old if new is None else new
    for key in ("overlap_comm", "contiguous_gradients", "round_robin_gradients"):
        values[key] = section.flag(key)
    if values["overlap_comm"] is None:
        # DeepSpeed decides by stage where the file says nothing.
        values["overlap_comm"] = stage == 3
    notes: list[str] = []
    values["offload_optimizer"] = _offload(section, "offload_optimizer", "cpu_offload", notes)
    values["offload_param"] = _offload(section, "offload_param", "cpu_offload_param", notes)
    for key in ("zero_quantized_weights", "zero_quantized_gradients"):
        if section.flag(key):
            raise ValueError(
                f"{section.name(key)} (true) changes the numbers of the training, which the workload's precision does not; "
                "set it to false"
            )
    if stage != 3:
        notes += _drop_stage3(values, section, stage)
    notes += [f"{name} is not applied" for name in section.unread(_SILENT_ZERO_KEYS)]
    return ZeroConfig.model_validate({key: value for key, value in values.items() if value is not None}), notes


def _drop_stage3(values: dict[str, object], section: Section, stage: int | None) -> list[str]:
    """Remove stage-3 settings of a ZeRO section below stage 3, where DeepSpeed ignores them too, and add a note on
    them."""
    notes = []
    if values.pop("offload_param", None) is not None:
        notes.append(f"{section.name('offload_param')} has no effect at stage {stage}")
    hpz = values.pop("zero_hpz_partition_size", None)
    if isinstance(hpz, int) and hpz > 1:
        notes.append(f"{section.name('zero_hpz_partition_size')} has no effect at stage {stage}")
    return notes


def _offload(section: Section, key: str, old_key: str, notes: list[str]) -> Offload | None:
    if section.flag(old_key):
        return Offload(device="cpu", pin_memory=bool(section.flag("cpu_offload_use_pin_memory")))
    offload = section.section(key)
    device = offload.text("device")
    if device in (None, "none"):
        return None
    if device != "cpu":
        raise ValueError(
            f"{offload.name('device')} ({device!r}) must be none or cpu: no other is tried here; use one of them"
        )
    # DeepSpeed pins nothing unless it is told to.
    values = {"device": device, "pin_memory": bool(offload.flag("pin_memory"))}
    ratio = offload.number("ratio")
    notes += [f"{name} is not applied" for name in offload.unread()]
    try:
        return Offload.model_validate(values if ratio is None else {**values, "ratio": ratio})
    except ValidationError as error:
        raise in_words(error, offload.name("")[:-1], "DeepSpeed's configuration JSON") from error

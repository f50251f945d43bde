"""Reading of the `fp16` section of a DeepSpeed JSON: its values are checked, and what is measured otherwise is noted."""

from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner.baseline.section import Section

_BOUNDS = {
    "loss_scale": (0, None),
    "min_loss_scale": (1, None),
    "initial_scale_power": (0, 127),
    "loss_scale_window": (1, None),
    "hysteresis": (0, None),
}
"""Smallest and largest allowed value of each number in DeepSpeed's section `fp16`. A loss scale of more than 2 to the
power of 127 would overflow float32."""
_FLAGS = ("consecutive_hysteresis", "auto_cast")
_MEASURED = {"min_loss_scale": 1, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
"""Settings of the loss scale with which trials run; no note is needed where a baseline file states the same."""


def check(top: Section, fp16: Section, precision: Precision, notes: list[str]) -> None:
    """Check the loss scale in a DeepSpeed JSON (`top`, with its section `fp16`), and note where trials, which adapt the
    scale as torch's `GradScaler` does, differ.

    Raises:
        ValueError: the file keeps master weights in float16, or DeepSpeed would reject a value.
    """
    if fp16.flag("fp16_master_weights_and_grads"):
        raise ValueError(
            f"{fp16.name('fp16_master_weights_and_grads')} (true), but trials keep float32 masters; set it to false"
        )
    stated = {name: _number(fp16, name) for name in _BOUNDS} | {name: fp16.flag(name) for name in _FLAGS}
    if stated.pop("loss_scale"):
        notes.append(f"{fp16.name('loss_scale')} ({fp16.number('loss_scale')}) is fixed; measured with a dynamic scale")
    notes += [
        f"{fp16.name(name)} ({str(value).lower()}) is not applied: the loss scale of trials begins at 65536 and grows every "
        "2000 steps"
        for name, value in stated.items()
        if value is not None and value != _MEASURED.get(name, False)
    ]
    notes += [f"{name} is not applied" for name in fp16.unread()]
    if top.text("communication_data_type") is None:
        notes.append(
            f"DeepSpeed's fp16 reduces gradients in float16; measured with the precision's {precision.reduce_dtype} "
            f"({precision.name})"
        )


def _number(fp16: Section, name: str) -> float | None:
    """Number in DeepSpeed's section `fp16`, checked against its bounds; it must be whole, except for the loss scale."""
    value = fp16.number(name) if name == "loss_scale" else fp16.integer(name)
    least, most = _BOUNDS[name]
    if value is None or (value >= least and (most is None or value <= most)):
        return value
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    raise ValueError(f"{fp16.name(name)} ({value}) must be {bounds}; correct it, or drop it")

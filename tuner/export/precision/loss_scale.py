"""Loss scale of float16 in exported files: lines of `train_snippet.py`, and programs that have no such training."""

from dataclasses import dataclass

from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill, indent

_REJECTED = {
    "torchtitan": "torchtitan 0.3 has no loss scale",
    "axolotl": "nobody has compared axolotl's float16",
    "llama-factory": "nobody has compared LLaMA-Factory's float16",
    "ms-swift": "nobody has compared ms-swift's float16",
}
"""Reason why a training measured in float16 cannot be exported at all, by export format."""


@dataclass(frozen=True)
class _ComparedFormat:
    """Extent to which an export format's float16 training was compared with the trial's."""

    backends: tuple[str, ...]
    """Backends with which the format's program trains in float16 as the trial did."""
    not_on_cpu: str | None
    """Reason why the format's program cannot train on CPU ranks what was measured in float16; None where it can."""


_COMPARED = {
    "lightning": _ComparedFormat(("ddp",), "Lightning trains bfloat16 on CPU ranks in place of float16"),
    "training-arguments": _ComparedFormat(
        ("ddp", "zero"), "the Trainer trains float32 on CPU ranks in place of float16"
    ),
    "trl": _ComparedFormat(("ddp", "zero"), "TRL trains float32 on CPU ranks in place of float16"),
}
"""Export formats whose program can train in float16, by name. A format that is neither here nor among the rejected
formats is rejected as well."""


def is_used(source: ExportSource) -> bool:
    """Whether the exported trial scaled its loss, as training in float16 does."""
    return source.workload.precision.scales_loss


def check_format(source: ExportSource, form: str) -> None:
    """Reject an export of a float16 training to a format whose program cannot train it in the same way. Formats for
    launchers, which start the standard exported files, need no check.

    Raises:
        ValueError: names the precision and the remedy.
    """
    backend = source.config.backend
    reason, compared = _REJECTED.get(form), _COMPARED.get(form)
    if reason is None and (compared is None or backend not in compared.backends):
        reason = f"nobody has compared the float16 of {form} with {backend}"
    if reason is None and compared is not None and source.on_cpu:
        reason = compared.not_on_cpu
    if is_used(source) and reason is not None:
        raise ValueError(
            f"precision ({source.workload.precision.name!r}) cannot be exported as {form}: {reason}; take the standard files"
        )


def backward(source: ExportSource) -> str:
    """Line of `train_snippet.py` that runs the backward pass of one micro batch."""
    loss = "loss / ACCUMULATION"
    return f"self.scaler.scale({loss}).backward()" if is_used(source) else f"({loss}).backward()"


def imports(source: ExportSource) -> list[str]:
    """Import line of `train_snippet.py` for the loss scale; empty without it."""
    return ["from torch.amp import GradScaler"] if is_used(source) else []


def parts(source: ExportSource, scaler: str = "GradScaler") -> dict[str, str]:
    """Values for the template of `train_snippet.py`: lines that make the gradient scaler, unscale gradients before
    their norm is taken, and step the optimizer. `scaler`: name of the scaler's class."""
    if not is_used(source):
        return {"scaler": "", "unscale": "", "update": indent(["self.optimizer.step()"], 8)}
    update = [
        "# Where gradients overflowed (the norm is inf or nan) nothing is updated, and the scale is halved.",
        "self.scaler.step(self.optimizer)",
        "self.scaler.update()",
    ]
    return {
        "scaler": indent([f"self.scaler = {scaler}(device.type)"], 8),
        "unscale": indent(["self.scaler.unscale_(self.optimizer)"], 8),
        "update": indent(update, 8),
    }


def shared_scaler(source: ExportSource) -> str:
    """Source of the gradient scaler class that `train_snippet.py` defines for FSDP1's shards; empty without a loss
    scale."""
    return fill("shared_scaler") if is_used(source) else ""


def accelerate_notes(source: ExportSource) -> list[str]:
    """Note on Accelerate's loss scale under FSDP; empty without float16."""
    if not is_used(source):
        return []
    return [
        "torch.optim.AdamW(…, fused=False): beside Accelerate's ShardedGradScaler the fused AdamW raises an error (torch 2.13)"
    ]

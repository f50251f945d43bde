"""Check whether a model's output head can compute the loss in chunks of tokens: traces what the model does with its
logits, by forward passes on the meta device.

A model may only scale or cap logits between the head and transformers' loss. The head then does the same to each chunk,
and the model's own code is told not to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import shared_heads

_TOKENS = 8
_HUGE = 1e30
"""Logit so large that a soft cap (by tanh) turns it into the cap's own value. This is how a model's cap is found
out."""
_NEUTRAL: dict[str, float | None] = {
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
    "logits_soft_cap": None,
}
"""Attributes of transformers' models that scale or cap logits (5.23), each with the value at which it does neither."""


@dataclass(frozen=True)
class LossPlan:
    """Scale or cap that a model applies to its logits between the output head and the loss."""

    scale: float = 1.0
    """Number by which the model multiplies its logits."""
    cap: float | None = None
    """Largest magnitude that logits can reach under the model's soft cap (by tanh); None if it has no cap."""
    attributes: tuple[str, ...] = ()
    """Names of the model's attributes, among `_NEUTRAL`, that scale or cap logits."""

    def finished(self, logits: torch.Tensor) -> torch.Tensor:
        """Scale or cap the logits that the output head returned, as the model would."""
        if self.cap is not None:
            return self.cap * torch.tanh(logits / self.cap)
        return logits if self.scale == 1.0 else logits * self.scale

    def gradient(self, values: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Gradient with respect to the logits that the output head returned. `values` is the gradient with respect to
        the scaled or capped logits, and is overwritten by the result."""
        if self.cap is not None:
            return values.mul_(1.0 - torch.tanh(logits / self.cap).square())
        return values if self.scale == 1.0 else values.mul_(self.scale)

    def leave_logits_alone(self, model: nn.Module) -> None:
        """Make the model's own code leave the logits of its output head as they are, without scale or cap."""
        for owner in _owners(model):
            for name in self.attributes:
                if hasattr(owner, name):
                    setattr(owner, name, _NEUTRAL[name])


def of(spec: ModelSpec, workload: Workload) -> LossPlan:
    """Build the model on the meta device and plan its chunked loss.

    Raises:
        ValueError: the output head cannot compute the loss in chunks; the message is the end of a sentence, without its
            beginning.
    """
    eager = workload.model_copy(update={"attention": "eager"})
    return of_model(models.build(spec, eager, experts=shared_heads.on_meta(spec)).to("meta"))


def note_of(model: nn.Module) -> str | None:
    """Reason why the output head of a model on the meta device cannot compute the loss in chunks; None if it can."""
    try:
        of_model(model)
    except ValueError as error:
        return str(error)
    return None


def of_model(model: nn.Module) -> LossPlan:
    """Plan the chunked loss of a model on the meta device. The model's own scale or cap of logits is turned off.

    Raises:
        ValueError: the output head cannot compute the loss in chunks; the message is the end of a sentence, without its
            beginning.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not nn.Linear:
        raise ValueError("it has no output head that is one matrix")
    try:
        plan = _plan(model, head)
        if plan.attributes:
            plan.leave_logits_alone(model)
            if _plan(model, head) != LossPlan():
                raise ValueError("it changes its logits by more than one scale or cap")
        _require_plain_loss(model)
    except (RuntimeError, TypeError, AttributeError, ImportError, KeyError, IndexError) as error:
        raise ValueError(f"its loss could not be looked at ({' '.join(str(error).split())[:300]})") from error
    return plan


def _plan(model: nn.Module, head: nn.Linear) -> LossPlan:
    """Find a model's scale or cap of logits: replace the head's logits by known values, and read what the model returns.

    Raises:
        ValueError: the model does more than scale or cap its logits.
    """
    # On the CPU, unlike the model: tensors of the meta device have no values.
    known = torch.linspace(-60.0, 60.0, _TOKENS * head.out_features).view(1, _TOKENS, head.out_features)
    known[0, 0, 0], known[0, 0, 1] = 1.0, _HUGE
    calls: list[None] = []

    def replace(_module: nn.Module, _inputs: Any, _output: Any) -> torch.Tensor:
        calls.append(None)
        return known.clone()

    handle = head.register_forward_hook(replace)
    try:
        logits = _run(model).logits
    finally:
        handle.remove()
    if len(calls) != 1:
        raise ValueError(f"its output head runs {len(calls)} times in a forward pass")
    if not isinstance(logits, torch.Tensor) or logits.shape != known.shape:
        raise ValueError("it returns other logits than its output head's")
    return _explanation(model, known, logits.float())


def _explanation(model: nn.Module, known: torch.Tensor, logits: torch.Tensor) -> LossPlan:
    """Scale or cap that turns the known logits, put in at the output head, into the logits that the model returned.

    Raises:
        ValueError: no single scale or cap explains them.
    """
    if torch.equal(known, logits):
        return LossPlan()
    names = tuple(name for name in _NEUTRAL if any(_changes(owner, name) for owner in _owners(model)))
    first, huge = float(logits[0, 0, 0]), float(logits[0, 0, 1])
    for plan in (LossPlan(scale=first, attributes=names), LossPlan(cap=huge, attributes=names)):
        if names and torch.allclose(plan.finished(known), logits, rtol=1e-6, atol=1e-6):
            return plan
    raise ValueError("it changes its logits by more than one scale or cap")


def _changes(owner: Any, name: str) -> bool:
    return getattr(owner, name, _NEUTRAL[name]) != _NEUTRAL[name]


def _require_plain_loss(model: nn.Module) -> None:
    """Check that the model's loss is nothing but transformers' mean cross entropy of the next token.

    Raises:
        ValueError: the loss is another one.
    """
    causal: Any = model
    if causal.loss_function is not ForCausalLMLoss:
        raise ValueError("its loss is not transformers' cross entropy of the next token")
    calls: list[dict[str, Any]] = []
    result = torch.zeros((), device="meta")

    def record(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(dict(zip(("logits", "labels", "vocab_size"), args, strict=False)) | kwargs)
        return result

    labels = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
    causal.loss_function = record
    try:
        loss = _run(model, labels=labels).loss
    finally:
        del causal._loss_function
    # A model may add to the loss in place (`loss += router_loss`), which shows in the tensor's version alone.
    is_changed = loss is not result or result._version > 0
    if is_changed or len(calls) != 1 or calls[0].get("labels") is not labels:
        raise ValueError("its loss is more than the cross entropy of the next token")
    if {key for key, value in calls[0].items() if value is not None} - {"logits", "labels", "vocab_size"}:
        raise ValueError("its loss takes more than logits and labels")


def _run(model: nn.Module, **inputs: Any) -> Any:
    tokens = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
    # Without a mask, transformers looks into the position ids for packed samples, and here they hold no values.
    mask = torch.ones(1, _TOKENS, dtype=torch.bool, device="meta")
    with torch.no_grad():
        return model(input_ids=tokens, attention_mask=mask, use_cache=False, **inputs)


def _owners(model: nn.Module) -> Iterator[Any]:
    """Objects whose attributes may scale or cap a model's logits."""
    config: Any = getattr(model, "config")  # noqa: B009 -- nn.Module's attributes are untyped
    text = config.get_text_config()
    yield from (model, getattr(model, "base_model", model), config)
    if text is not config:
        yield text

"""Test of leaks: whether the samples of a packed row see each other, in a tiny model of a trial's own architecture.

Each trial with packed samples runs it before it builds anything: the attention that is installed decides, not its name.
"""

from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import PACKED
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import build, packed_batch

LARGEST_LEAK = 1e-5
"""Maximum accepted influence between packed samples: how much a sample's logits may change when another sample in its
row changes, in units of the logits' standard deviation."""
LEAST_PLANTED = 0.1
"""Minimum influence between packed samples (change of a sample's logits, in units of their standard deviation) that the
test must find in rows whose samples are deliberately not kept apart. A test that finds less could miss a leak."""
_FIRST, _SECOND, _ROWS, _VOCABULARY = 9, 15, 2, 97
_SIZES = {
    "vocab_size": _VOCABULARY,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_inner": 64,
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    **dict.fromkeys(("pad_token_id",)),
    # All tokens go to all experts: otherwise a changed token could change the shapes of others' products.
    "num_experts": 2,
    "num_local_experts": 2,
    "n_routed_experts": 2,
    "num_experts_per_tok": 2,
    # Groups of experts and dense first layers would leave experts out.
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
}
_HEADS, _KV_HEADS = ("num_attention_heads", "n_head"), "num_key_value_heads"
_WIDTHS, _DEPTHS = ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer")


class Leak(NamedTuple):
    """Changes of the logits of each row's second sample when its first sample changes, in units of the logits' standard
    deviation."""

    packed: float
    """Change of the second sample's logits with positions that restart at each sample, as in packed rows. The samples
    must not influence each other then, so it should be 0."""
    planted: float
    """Change of the second sample's logits with positions that run through the whole row, so that the samples influence
    each other."""


def check(spec: ModelSpec, workload: Workload, device: torch.device) -> None:
    """Reject packed samples if, with the model's code and the installed attention, the samples of a row would influence
    each other.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if workload.data is None or not workload.data.is_packed or spec.is_own:
        return
    dtype = build.DTYPES[workload.precision.compute_dtype]
    leak = measure(tiny_config(spec), workload, device, dtype)
    # NaN compares false: such a leak is rejected as well.
    if not (leak.packed <= LARGEST_LEAK and leak.planted >= LEAST_PLANTED):
        changed = (
            f"logits change by {leak.packed:.1e} of their spread" if leak.packed > LARGEST_LEAK else "nothing shows"
        )
        raise ValueError(
            f"data.layout ({PACKED!r}): attention ({workload.attention!r}) of model_type ({spec.model_type!r}) is not shown to "
            f"keep the samples of a row apart ({changed}; at most {LARGEST_LEAK:.0e} is accepted, and {LEAST_PLANTED} must show "
            "where positions are not reset); use another attention, or layout 'grouped'"
        )


def measure(config: Any, workload: Workload, device: torch.device, dtype: torch.dtype) -> Leak:
    """Measure how far packed samples influence each other in a model that is built from `config`, with random weights."""
    model = _model(config, workload, device, dtype)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, _VOCABULARY, (_ROWS, _FIRST + _SECOND), generator=generator)
    changed = tokens.clone()
    changed[:, :_FIRST] = (changed[:, :_FIRST] + 1) % _VOCABULARY
    packed = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)]).expand(_ROWS, -1)
    whole = torch.arange(_FIRST + _SECOND).expand(_ROWS, -1)
    both = (tokens.to(device), changed.to(device))
    attention = workload.attention
    return Leak(*(_change(model, both, positions.contiguous().to(device), attention) for positions in (packed, whole)))


def _change(
    model: nn.Module, both: tuple[torch.Tensor, torch.Tensor], positions: torch.Tensor, attention: str
) -> float:
    with torch.no_grad():
        first, second = (
            model(**packed_batch.model_inputs(tokens, positions, attention), use_cache=False)
            .logits.view(_ROWS, _FIRST + _SECOND, -1)[:, _FIRST:]
            .float()
            for tokens in both
        )
    return float((first - second).abs().max() / first.std())


def _model(config: Any, workload: Workload, device: torch.device, dtype: torch.dtype) -> nn.Module:
    options = {"attn_implementation": build.attention_of(config, workload), "dtype": dtype}
    with build.without_values():
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False, **options)
    model.tie_weights()  # type: ignore[operator]
    generator = torch.Generator().manual_seed(0)

    # Large enough for attention to tell tokens apart, which the usual initial values of a narrow model are not.
    def make(_name: str, old: nn.Parameter) -> nn.Parameter:
        value = torch.randn(old.shape, generator=generator) if old.ndim > 1 else torch.ones(old.shape)
        scale = old.shape[-1] ** -0.5 if old.ndim > 1 and old.shape[0] != _VOCABULARY else 1.0
        return nn.Parameter((value * scale).to(device, dtype), requires_grad=False)

    build.replace_parameters(model, make)
    build.move_buffers(model, device)
    return model.eval()


def tiny_config(spec: ModelSpec) -> Any:
    """Configuration of a small model that has the architecture, head dimension and kinds of layers of a task's model,
    but is narrow and shallow."""
    text = build.config_of(spec).get_text_config()
    values: dict[str, Any] = text.to_dict()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    sizes = {key: value for key, value in _SIZES.items() if key in values}
    sizes |= {key: 2 for key in _HEADS if key in values}
    sizes |= {key: 2 * head_dim for key in _WIDTHS if key in values}
    if values.get(_KV_HEADS) is not None:
        sizes[_KV_HEADS] = 2 if values[_KV_HEADS] == text.num_attention_heads else 1
    if values.get("sliding_window") is not None:
        sizes["sliding_window"] = 4
    sizes |= _fewer_layers(values)
    model_type = values.pop("model_type")
    return transformers.AutoConfig.for_model(model_type, **(values | sizes))


def _fewer_layers(values: dict[str, Any]) -> dict[str, Any]:
    """Number of layers of a tiny configuration, with one layer of each kind that the given configuration has; and the
    values that the configuration lists by layer."""
    depth_key = next(key for key in _DEPTHS if key in values)
    depth = values[depth_key]
    by_layer = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == depth}
    kinds = {tuple(str(value[layer]) for value in by_layer.values()): layer for layer in reversed(range(depth))}
    layers = sorted(kinds.values()) if by_layer else [0, 0]
    return {depth_key: len(layers)} | {key: [value[layer] for layer in layers] for key, value in by_layer.items()}

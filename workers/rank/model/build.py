"""Construction of a task's model: structure by transformers, parameters on the meta device until a training strategy
places them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import masking_utils
from transformers.initialization import no_init_weights

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import weights
from shardtune.workers.rank.model.quantization import layers as quantised

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_FIND_PACKED = masking_utils.find_packed_sequence_indices
_RANDOM_WORDS = ("dropout", "pdrop", "layerdrop", "jitter_noise")
"""Words that occur in those keys of a model's configuration which control random behaviour, such as `dropout`."""


# Dropout would make losses depend on how the batch is split over ranks, and parity could not be checked.
def without_randomness(config: dict[str, Any]) -> dict[str, Any]:
    """Copy a model's configuration with every dropout probability, at any depth, set to zero."""
    plain: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            plain[key] = without_randomness(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and any(w in key for w in _RANDOM_WORDS):
            plain[key] = 0.0
        else:
            plain[key] = value
    return plain


def config_of(spec: ModelSpec) -> Any:
    """Transformers configuration of a task's model, without randomness and without a key-value cache.

    Raises:
        ValueError: the installed transformers has no causal language model of that type.
    """
    entries = without_randomness(dict(spec.trained_config))
    model_type = entries.pop("model_type")
    entries.pop("transformers_version", None)
    if model_type not in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(
            f"model_type ({model_type!r}) is no causal language model of transformers {transformers.__version__}; "
            "use one that it lists, or another transformers"
        )
    config = transformers.AutoConfig.for_model(model_type, **entries)
    for part in (config, config.get_text_config()):
        # Dropout that the file leaves out has the architecture's default, which need not be zero.
        for key, value in without_randomness(part.to_dict()).items():
            if any(word in key for word in _RANDOM_WORDS) and getattr(part, key, None):
                setattr(part, key, value)
        part.use_cache = False
    return config


def build(spec: ModelSpec, workload: Workload, experts: str | None = None) -> nn.Module:
    """Build the model in training mode, with float32 parameters on the meta device and buffers computed on the CPU.

    `experts`: implementation of mixtures of experts in transformers; None: the default of transformers.
    """
    config = config_of(spec)
    options: dict[str, Any] = {"attn_implementation": attention_of(config, workload), "dtype": torch.float32}
    if experts is not None:
        options["experts_implementation"] = experts
    with without_values():
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False, **options)
    model.tie_weights()  # type: ignore[operator]
    return model.train()


def attention_of(config: Any, workload: Workload) -> str:
    """Attention implementation for a model. It is the workload's, or `eager` if transformers has no fused attention for
    the architecture, as for models with attention sinks or soft caps."""
    model_class = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    lacks = workload.attention == "sdpa" and not getattr(model_class, "_supports_sdpa", False)
    return "eager" if lacks else workload.attention


def search_packed_samples(is_packed: bool) -> None:
    """Turn transformers' search for packed samples on or off for this process. The search finds the bounds of samples
    in the position ids."""
    # transformers would search in each forward without a mask, and wait for the device (5.x, `masking_utils`).
    masking_utils.find_packed_sequence_indices = _FIND_PACKED if is_packed else lambda position_ids: None


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Context in which models are built without initial weights: parameters on the meta device, buffers computed."""
    with no_init_weights(), _parameters_on_meta():
        yield


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device as it is registered; the parameter's own memory is never written to."""
    # Building on `torch.device("meta")` would lose the buffers that a constructor computes, such as rotary frequencies.
    original: Callable[..., None] = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        original(module, name, parameter)
        if parameter is not None and parameter.device.type != "meta":
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def replace_parameters(model: nn.Module, make: Callable[[str, nn.Parameter], nn.Parameter]) -> None:
    """Replace each distinct parameter of a model by `make(name, old)`; tied parameters stay tied."""
    replacements: dict[int, nn.Parameter] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        for key, old in list(module._parameters.items()):
            if old is None:
                continue
            if id(old) not in replacements:
                # Keyed by the old identity, so the old one must stay alive: `old` of a tied twin is the same object.
                replacements[id(old)] = make(names[id(old)], old)
            module._parameters[key] = replacements[id(old)]


def cast_trained(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the dtype of a model's trained parameters on the meta device. Buffers, such as rotary frequencies, keep
    their dtype."""

    def make(_name: str, old: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(old.to(dtype)) if old.requires_grad else old

    replace_parameters(model, make)


def materialize(
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype | Callable[[nn.Parameter], torch.dtype],
    seed: int,
    round_to: torch.dtype,
) -> None:
    """Give every parameter of a model its whole initial value on `device`, and move the buffers there. Weights of 4-bit
    layers are packed, one at a time.

    `dtype`: dtype of all parameters, or a function that returns the dtype of each.
    """

    def make(name: str, old: nn.Parameter) -> nn.Parameter:
        if quantised.is_unpacked(old):
            return quantised.packed(old, weights.filling(name, old.shape, seed), device)
        own_dtype = dtype if isinstance(dtype, torch.dtype) else dtype(old)
        value = torch.empty(old.shape, dtype=own_dtype, device=device)
        weights.fill_(value.view(-1), name, old.shape, 0, seed, round_to)
        return nn.Parameter(value, requires_grad=old.requires_grad)

    replace_parameters(model, make)
    move_buffers(model, device)


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a model's buffers by name. Names that share a buffer share its copy."""
    # By default torch leaves out all names of a buffer but the first.
    copies: dict[int, torch.Tensor] = {}
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for buffer in buffers.values():
        if id(buffer) not in copies:
            copies[id(buffer)] = buffer.clone()
    return {name: copies[id(buffer)] for name, buffer in buffers.items()}


def empty_parameters(
    model: nn.Module, device: torch.device, buffers: Mapping[str, torch.Tensor], buffers_device: torch.device
) -> None:
    """Give a model's parameters memory on a device, without values, and its buffers the given values on another
    device."""
    model.to_empty(device=device)
    # `to_empty` has emptied the buffers too.
    for name, buffer in buffers.items():
        owner, _, key = name.rpartition(".")
        model.get_submodule(owner)._buffers[key] = buffer.to(buffers_device)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move a model's buffers to a device, but not its parameters, which may still be on the meta device."""
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = buffer.to(device)

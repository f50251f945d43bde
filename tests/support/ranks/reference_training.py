"""The reference of the parity tests: one process, the whole global batch at once, nothing but torch.

Shares with the ranks only what defines the task: the model's structure, initial weights and data.
"""

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import bitsandbytes
import torch
from bitsandbytes import functional
from torch import nn
from torch.func import functional_call
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from shardtune.api_schemas.training.adapters import AdapterSchema, Lora
from shardtune.api_schemas.training.optimizers import AdamW, AdamW8bit, AdamWBf16, Muon
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.workers.rank.model import adapters, build, data

_FIXED_SCALE = 1024.0
"""Loss scale of float16, at which a tiny model's gradients neither vanish nor overflow."""
_done: dict[str, tuple[StepRecord, ...]] = {}


def train(task: TrialTask) -> tuple[StepRecord, ...]:
    """The trajectory a correct strategy must reproduce; equal tasks are run once."""
    key = task.model.content_key() + task.workload.content_key() + str(task.plan.parity_steps)
    if task.workload.float8 is not None:
        # One scale for a tensor is that of a micro batch.
        key += str(task.config.micro_batch)
    if key not in _done:
        _done[key] = _train(task)
    return _done[key]


def circumstances(task: TrialTask) -> dict[str, Any]:
    """What the reference was trained with in this process, and its trajectory when it is trained again.

    An earlier test in this process may have left something that the ranks, which have processes of their own, do not
    have. Once the reference of Gemma 3 was that of a model without its attention window, and its ranks were right.
    """
    network: Any = build.build(task.model, task.workload)
    text = network.config.get_text_config()
    attention = text._attn_implementation
    functions = {"attention": ALL_ATTENTION_FUNCTIONS, "mask": ALL_MASK_ATTENTION_FUNCTIONS}
    used = {name: repr(mapping.get(attention)) for name, mapping in functions.items()}
    fields = {name: getattr(text, name, None) for name in ("sliding_window", "layer_types", "is_causal")}
    return {"implementation": attention, **used, **fields, "trained again": _train(task)}


def _train(task: TrialTask) -> tuple[StepRecord, ...]:
    workload = task.workload
    compute = build.DTYPES[workload.precision.compute_dtype]
    network = build.build(task.model, workload)
    # Beside weights that are not quantised: their values are those that 4 bits leave of them.
    adapters.install(network, plain_adapter(workload.adapter))
    if workload.float8 is not None:
        _convert(network, workload.float8)
    precision = workload.precision
    master = build.DTYPES[precision.master_dtype]
    build.materialize(
        network, torch.device("cpu"), master, workload.seed, torch.float32 if precision.autocast else compute
    )
    if isinstance(workload.adapter, Lora) and workload.adapter.quantization is not None:
        _round_to_4_bits(network, workload.adapter, compute)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizers = _optimizers(network, workload.optimizer, fused=precision.has_low_states)
    vocab_size = network.get_input_embeddings().num_embeddings
    records = []
    for step in range(task.plan.parity_steps):
        batch = range(workload.global_batch)
        if workload.sample_plan is not None:
            loss = _ragged_loss(network, workload, step, vocab_size)
        else:
            tokens = data.samples(workload.seed, step, batch, workload.sequence_length, vocab_size, torch.device("cpu"))
            parts = tokens.split(task.config.micro_batch) if workload.float8 is not None else [tokens]
            compute_loss = _autocast_loss if precision.autocast else _loss
            loss = torch.stack([compute_loss(network, part, compute) for part in parts]).mean()
        network.zero_grad()
        scale = _FIXED_SCALE if precision.scales_loss else 1.0
        (loss * scale).backward()
        for parameter in parameters if precision.scales_loss else ():
            parameter.grad = parameter.grad / scale if parameter.grad is not None else None
        norm = nn.utils.clip_grad_norm_(parameters, workload.max_grad_norm or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
        masters = torch.cat([p.detach().double().flatten() for p in parameters])
        records.append(
            StepRecord(
                step=step,
                loss=loss.item(),
                grad_norm=norm.item(),
                parameter_sum=masters.sum().item(),
                parameter_square_sum=masters.square().sum().item(),
            )
        )
    return tuple(records)


def plain_adapter(adapter: AdapterSchema | None) -> AdapterSchema | None:
    """The same adapter beside weights that are not quantised."""
    if not isinstance(adapter, Lora):
        return adapter
    return adapter.model_copy(update={"quantization": None, "double_quantization": False})


@torch.no_grad()
def _round_to_4_bits(network: nn.Module, lora: Lora, compute: torch.dtype) -> None:
    """Replace each frozen linear weight of the blocks by what it is after it was packed and unpacked."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad and "lm_head" not in name:
            packed, state = functional.quantize_4bit(
                layer.weight.to(compute), compress_statistics=lora.double_quantization, quant_type=lora.quantization
            )
            layer.weight.copy_(functional.dequantize_4bit(packed, state))


def _convert(network: nn.Module, recipe: str) -> None:
    """Convert every linear layer but the output head, by torchao's own filter."""
    # Imported here: it takes seconds, which other tests need not spend.
    torchao = importlib.import_module("torchao.float8")
    config = replace(torchao.Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    torchao.convert_to_float8_training(network, config=config, module_filter_fn=lambda _layer, name: name != "lm_head")


class _Torchaos(torch.optim.Optimizer):
    """AdamW by torchao's arithmetic, which rounds weights by chance; uncompiled, with torch's default random numbers."""

    def __init__(self, parameters: list[nn.Parameter], settings: AdamWBf16) -> None:
        super().__init__(parameters, {})
        self._settings = settings
        # Imported here: it takes seconds, which other tests need not spend.
        self._step = importlib.import_module("torchao.optim.adam").single_param_adam
        torch.manual_seed(0)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all parameters."""
        own = self._settings
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {"step": torch.tensor(0.0), "first": torch.zeros_like(parameter)}
                state["second"] = torch.zeros_like(parameter)
            state["step"] += 1
            moments = state["step"], state["first"], state["second"], None
            numbers = torch.tensor(own.lr), own.beta1, own.beta2, own.weight_decay, own.eps
            self._step(parameter, parameter.grad, *moments, *numbers, True, True)


def _optimizers(
    network: nn.Module, settings: AdamW | AdamW8bit | AdamWBf16 | Muon, *, fused: bool
) -> list[torch.optim.Optimizer]:
    if isinstance(settings, AdamWBf16):
        return [_Torchaos([parameter for parameter in network.parameters() if parameter.requires_grad], settings)]
    if isinstance(settings, AdamW8bit):
        betas = (settings.beta1, settings.beta2)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        return [bitsandbytes.optim.AdamW8bit(trained, settings.lr, betas, settings.eps, settings.weight_decay)]
    if isinstance(settings, AdamW):
        return [_adamw(network.parameters(), settings, fused=fused)]
    tables = ("embed_tokens", "lm_head", "wte", "wpe")
    matrices = {
        name: p for name, p in network.named_parameters() if p.ndim == 2 and not any(table in name for table in tables)
    }
    others = [p for name, p in network.named_parameters() if name not in matrices]
    muon = torch.optim.Muon(
        matrices.values(), settings.lr, settings.weight_decay, settings.momentum, settings.nesterov,
        ns_steps=settings.ns_steps, adjust_lr_fn=settings.adjust_lr_fn,
    )  # fmt: skip
    return [muon, _adamw(others, settings.adamw, fused=fused)]


def _adamw(parameters: Iterable[nn.Parameter], settings: AdamW, *, fused: bool) -> torch.optim.AdamW:
    """AdamW; the fused kernel rounds states below float32 once a step, the other once an operation."""
    return torch.optim.AdamW(
        parameters, settings.lr, (settings.beta1, settings.beta2), settings.eps, settings.weight_decay, fused=fused
    )


def _loss(network: nn.Module, tokens: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
    weights = {name: parameter.to(compute) for name, parameter in network.named_parameters()}
    loss: torch.Tensor = functional_call(network, weights, kwargs={"input_ids": tokens, "labels": tokens}).loss
    return loss


def _ragged_loss(network: nn.Module, workload: Workload, step: int, vocab_size: int) -> torch.Tensor:
    """Sum of the losses of all samples, each alone and without padding, by the number of their labels."""
    assert workload.sample_plan is not None
    total, labels = torch.zeros(()), 0
    for index, length in enumerate(workload.sample_plan.lengths(step)):
        tokens = data.samples(workload.seed, step, [index], length, vocab_size, torch.device("cpu"))
        logits = network(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        total = total + nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum")
        labels += length - 1
    return total / labels


def _autocast_loss(network: nn.Module, tokens: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
    with torch.autocast("cpu", compute):
        loss: torch.Tensor = network(input_ids=tokens, labels=tokens).loss
    return loss


def deviation(trajectory: tuple[StepRecord, ...], reference: tuple[StepRecord, ...]) -> dict[str, float]:
    """Largest relative difference over the steps, by quantity."""
    assert len(trajectory) == len(reference)
    return {
        name: max(
            abs(getattr(a, name) - getattr(b, name)) / abs(getattr(b, name))
            for a, b in zip(trajectory, reference, strict=True)
        )
        for name in ("loss", "grad_norm", "parameter_sum", "parameter_square_sum")
    }

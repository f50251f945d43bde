"""Model, batches and loss for Shardtune: a LoRA adapter (peft) on a frozen Llama.

Install it where the worker runs (`pip install examples/own_model`) and allow it: `--allow-model lora-llama`.
"""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from shardtune.api_schemas.training.workload import Workload


def build_model(config: dict[str, Any], workload: Workload) -> nn.Module:
    """Build the model of the study's `model.config`, without dropout, which would make the numbers depend on the strategy."""
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.get("vocab_size", 512),
            hidden_size=config.get("hidden_size", 64),
            intermediate_size=2 * config.get("hidden_size", 64),
            num_hidden_layers=config.get("layers", 4),
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
    )
    return get_peft_model(llama, LoraConfig(r=config.get("rank", 8), target_modules=["q_proj", "v_proj"]))


def make_batch(
    config: dict[str, Any], workload: Workload, step: int, samples: range, device: torch.device
) -> torch.Tensor:
    """Token ids, int64 [samples, sequence length]; a sample's values do not depend on the rank that asks."""
    rows = []
    for sample in samples:
        generator = torch.Generator().manual_seed(workload.seed + step * workload.global_batch + sample)
        rows.append(torch.randint(config.get("vocab_size", 512), (workload.sequence_length,), generator=generator))
    return torch.stack(rows).to(device)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Next-token cross entropy, the mean over the batch."""
    value: torch.Tensor = model(input_ids=batch, labels=batch).loss
    return value

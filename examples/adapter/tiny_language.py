"""Model of 0.2 million parameters and endless made-up text, so that the examples run in seconds on a CPU."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 64


def build_model(seed: int) -> LlamaForCausalLM:
    """Build the model with the same weights on every rank and in every trial: trials are compared by their first losses."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
    )


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Dataset whose sample i is always the same."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(64, (LENGTH,), generator=generator).cumsum(0) % 512
        return {"input_ids": tokens, "labels": tokens}

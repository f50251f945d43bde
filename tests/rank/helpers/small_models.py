"""A small configuration of every causal language model that transformers has and that builds with the common sizes."""

from collections.abc import Iterator
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    # By the names of GPT's kind, and of mixtures of experts.
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 128, "d_model": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1,
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "first_k_dense_replace": 1, "sliding_window": 8,
}  # fmt: skip


def configs() -> Iterator[dict[str, Any]]:
    """Configurations by model type; what cannot be built of them is for the caller to find out."""
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if CONFIG_MAPPING[kind].sub_configs:
            continue  # of several parts, whose sizes would be their own
        yield {"model_type": kind, **SIZES}

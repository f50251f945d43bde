"""Models that a card of any size trains in seconds, with every backend's states and activations fitting well."""

from typing import Any

GIB = 1 << 30
_SIZES = ((40, 16, 2048), (16, 8, 1536), (0, 4, 768))
"""Memory in GiB from which on, blocks, hidden size. With 16 bytes a parameter the states take a tenth of it or less."""


def model_for(memory_bytes: float) -> dict[str, Any]:
    """A Llama of some 30 million to a billion parameters."""
    _, blocks, hidden = next(size for size in _SIZES if memory_bytes >= size[0] * GIB)
    return {
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }


def stand_in_model() -> dict[str, Any]:
    """A Llama that CPU ranks train in seconds, where they stand for GPUs."""
    return model_for(0) | {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1,
                           "num_hidden_layers": 2, "vocab_size": 512}  # fmt: skip


def study_for(memory_bytes: float, gpus: int) -> dict[str, Any]:
    """The study file of the short `tune`."""
    return {
        "model": model_for(memory_bytes),
        "workload": {"sequence_length": 512, "global_batch": 8 * gpus},
        "cluster": "local",
        # A whole sustained run does not fit into the step's limit; a few seconds show that it runs.
        "budget": {"max_trials": 6, "max_pairs": 7, "sustained_run_s": 10},
        "space": {"knobs": {"offload_optimizer": "none", "offload_param": "none"}},
    }

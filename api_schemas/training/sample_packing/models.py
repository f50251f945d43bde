"""Architectures in which packed samples do not attend to each other; each was admitted by a test of leaks on its own code."""

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import PACKED, SampleLengths

ADMITTED = frozenset(
    {
        "cohere",
        "cohere2",
        "deepseek_v3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_neox",
        "granite",
        "helium",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""Values of `model_type` of models in which packed samples do not attend to each other.
`tests/rank/test_packed_leaks.py` proves it for each kind of attention of these models."""
LEAKING = frozenset({"bloom", "falcon", "gpt_oss", "opt"})
"""Values of `model_type` of models in which packed samples of a row see each other (transformers 5.23): the attention
mask ignores that positions start anew with each sample."""
CARRYING = frozenset({"mamba", "qwen3_next"})
"""Values of `model_type` of models whose layers carry a state from token to token, and so also from one packed sample
of a row to the next."""


def check(data: SampleLengths | None, model: ModelSpec) -> None:
    """Reject packed samples for an architecture in which samples of one row would affect each other, or in which that
    has not been tested.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if data is None or not data.is_packed or model.is_own or model.model_type in ADMITTED:
        return
    if model.model_type in LEAKING:
        reason = "lets samples of a row attend to each other in transformers 5.23"
    elif model.model_type in CARRYING:
        reason = "carries a state from each sample of a row to the next in transformers 5.23"
    else:
        reason = "was not tested for samples that attend to each other"
    raise ValueError(
        f"data.layout ({PACKED!r}) with model_type ({model.model_type!r}), which {reason}; use layout 'grouped', which wastes "
        "little"
    )

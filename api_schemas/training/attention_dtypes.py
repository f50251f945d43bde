"""Dtypes in which attention implementations compute."""

from shardtune.api_schemas.training.workload import Precision

_HALF = ("float16", "bfloat16")


def check(attention: str, precision: Precision | None) -> None:
    """Reject flash attention in a dtype for which it has no kernels. If `precision` is None, it is not known yet.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    # flash-attn 2 raises "FlashAttention only support fp16 and bf16 data type" in each forward pass. Under autocast
    # transformers casts its inputs.
    if attention == "flash_attention_2" and precision is not None and precision.compute_dtype not in _HALF:
        raise ValueError(
            f"attention ('flash_attention_2') computes in float16 or bfloat16, and precision ({precision.name}) in "
            f"{precision.compute_dtype}; use attention sdpa or eager, or precision bf16-mixed"
        )

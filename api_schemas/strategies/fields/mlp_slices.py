"""Knob that computes each block's MLP over slices of the tokens, and the configurations that cannot have it.

The knob is a number of slices, not of tokens: ranks have rows of different lengths, and where a backend gathers weights
for each slice, every rank must gather as often.
"""

from shardtune.api_schemas.knobs import Knob, Lost, When, Written
from shardtune.api_schemas.training.adapters import AdapterSchema, Lora, quantization_of
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.models import ModelSpec

NAMED = tuple(2**power for power in range(8))
"""Numbers of MLP slices among which the user's limits of the search space select."""
OWN_CODE = "your own code computes the MLPs"
"""End of an error message: the reason why MLPs cannot be computed in slices in a model of the user's own code."""
EXPERTS = "its MLPs have experts, which take tokens from all slices"
"""End of an error message: the reason why MLPs cannot be computed in slices in a mixture of experts."""

MLP_SLICES = Knob(
    help="Slices of the tokens over which each block's MLP is computed: more need less memory, and backward computes each "
    "slice again.",
    name="MLP slices",
    phrases={"*": "MLP in {value} slices"},
    tries=(1, 4, 16),
    when=When(others={"compile": (False,)}),
    lightest="max",
    exports={
        "script": Written("`slice_mlp`"),
        "accelerate": Written("a line of your script"),
        "training_arguments": Lost("computes each MLP over all tokens at once"),
        "torchtitan": Lost("computes each MLP over all tokens at once"),
        "lightning": Written("a note: apply it in your module"),
    },
    values_text="1, 4, 16; where you name the knob, also 2, 8, 32, 64 and 128",
    when_text="no `compile`, `deepcompile`, tensor parallel ranks or pipeline stages, and the activations of one MLP take "
    "256 MiB and 5 % of a rank's memory in a micro batch, or the knob is limited; not with your own code, experts, float8, "
    "quantised base weights or DoRA",
    upstream="DeepSpeed's `TiledMLP` (ALST), axolotl's `tiled_mlp_num_shards`",
)


def check(slices: int, compiles: str | None, tensor: int, stages: int) -> None:
    """Reject a configuration whose MLPs cannot be computed in slices. `compiles` is the name of the field that compiles
    the blocks; None if it compiles none.

    Raises:
        ValueError: names the fields, their values and the remedy.
    """
    if slices == 1:
        return
    if compiles is not None:
        raise ValueError(
            f"mlp_slices ({slices}) with {compiles} (true) would compile the repetition of each slice, which nobody has tried; "
            f"set mlp_slices to 1, or {compiles} to false"
        )
    if tensor > 1:
        raise ValueError(
            f"mlp_slices ({slices}) with tensor_parallel ({tensor}) would divide the positions of each slice among ranks, in "
            "another order than the block's; set one of them to 1"
        )
    if stages > 1:
        raise ValueError(
            f"mlp_slices ({slices}) with pipeline_parallel ({stages}) was compared with no other backend; set one of them to 1"
        )


def check_training(
    slices: int,
    backend: str,
    model: ModelSpec | None,
    float8: Float8Recipe | None,
    adapter: AdapterSchema | None,
) -> None:
    """Reject slices for the MLPs of a model, a numerical format or an adapter that does not allow them, as far as is
    known before the model is built.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if slices == 1:
        return
    why = OWN_CODE if model is not None and model.is_own else why_not(backend, float8, adapter)
    if why is not None:
        raise rejected(slices, why)


def why_not(backend: str, float8: Float8Recipe | None, adapter: AdapterSchema | None) -> str | None:
    """Return the reason why a backend cannot compute MLPs in slices with a numerical format or an adapter, as the end
    of an error message. None if it can."""
    if float8 is not None:
        return f"float8 ({float8}) would take scales from a slice instead of all tokens"
    if quantization_of(adapter) is not None:
        return f"quantization ({quantization_of(adapter)}) would unpack every weight once a slice"
    if isinstance(adapter, Lora) and adapter.dora:
        return "dora (true) would take the weights' lengths once a slice"
    if isinstance(adapter, Lora) and backend == "fsdp1":
        return (
            "fsdp1 wraps LoRA's matrices as units of their own, and reduces no gradients of a unit that forward calls several "
            "times where it casts weights (torch 2.13)"
        )
    return None


def rejected(slices: int, why: str) -> ValueError:
    """Return the error for a training whose MLPs cannot be computed in slices. `why` is the reason, as the end of the
    error message."""
    return ValueError(f"mlp_slices ({slices}) is not for this training: {why}; use 1")

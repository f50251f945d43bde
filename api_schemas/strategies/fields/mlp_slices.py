"""Knob that computes each block's MLP over slices of the tokens, and the configurations that cannot have it.

The knob is a number of slices, not of tokens: ranks have rows of different lengths, and where a backend gathers weights
for each slice, every rank must gather as often.
"""

from shardtune.api_schemas.knobs import Knob, Lost, When, Written
from shardtune.api_schemas.training.adapters import AdapterSchema, Lora, quantization_of
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary

OWN_CODE = "your own code computes the MLPs"
"""Reason why models of the user's own code cannot have it; the end of a sentence."""

MLP_SLICES = Knob(
    help="Slices of the tokens over which each block's MLP is computed: more need less memory, and backward computes each "
    "slice again.",
    name="MLP slices",
    phrases={"*": "MLP in {value} slices"},
    tries=(1, 4, 16),
    when=When(others={"compile": (False,)}),
    accepts_own_values=True,
    lightest="max",
    exports={
        "script": Written("`slice_mlp`"),
        "accelerate": Written("a line of your script"),
        "training_arguments": Lost("computes each MLP over all tokens at once"),
        "torchtitan": Lost("computes each MLP over all tokens at once"),
        "lightning": Written("a note: apply it in your module"),
    },
    values_text="1, 4, 16; your own numbers",
    when_text="no `compile`, `deepcompile`, tensor parallel ranks or pipeline stages, and the activations of one MLP take "
    "256 MiB and 5 % of a rank's memory in a micro batch, or the knob is limited; not with your own code, experts, float8, "
    "quantised base weights or DoRA",
    upstream="DeepSpeed's `TiledMLP` (ALST), axolotl's `tiled_mlp_num_shards`",
)


def check(slices: int, compiles: str | None, tensor: int, stages: int) -> None:
    """Reject a configuration whose MLPs cannot be computed in slices. `compiles`: the name of the field that compiles the
    blocks, or None.

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
    backend: str | None,
    model: ModelSpec | None,
    float8: Float8Recipe | None,
    adapter: AdapterSchema | None,
    model_summary: ModelSummary | None = None,
) -> None:
    """Reject MLPs in slices for a model, a numerical format or an adapter that cannot have them, as far as is known.
    `backend` None: not chosen yet.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if slices == 1:
        return
    if model is not None and model.is_own:
        raise rejected(slices, OWN_CODE)
    if model_summary is not None and model_summary.mlp_note is not None:
        raise rejected(slices, model_summary.mlp_note)
    if float8 is not None:
        raise rejected(slices, f"float8 ({float8}) would take scales from a slice instead of all tokens")
    if quantization_of(adapter) is not None:
        raise rejected(slices, f"quantization ({quantization_of(adapter)}) would unpack every weight once a slice")
    if isinstance(adapter, Lora) and adapter.dora:
        raise rejected(slices, "dora (true) would take the weights' lengths once a slice")
    if isinstance(adapter, Lora) and backend == "fsdp1":
        raise rejected(
            slices,
            "FSDP1 wraps LoRA's matrices as units of their own, and reduces no gradients of a unit that forward calls several "
            "times where it casts weights (torch 2.13)",
        )


def rejected(slices: int, why: str) -> ValueError:
    """Return the error for a training whose MLPs cannot be computed in slices; `why` is the end of a sentence."""
    return ValueError(f"mlp_slices ({slices}) is not for this training: {why}; use 1")

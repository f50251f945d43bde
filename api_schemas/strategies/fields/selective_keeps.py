"""Knob that says which results selective checkpointing keeps, and the configurations that cannot have it."""

from typing import Literal

from shardtune.api_schemas.knobs import Knob, Lost, When, Written
from shardtune.api_schemas.training.adapters import AdapterSchema, Lora
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.models import ModelSpec

SelectiveKeeps = Literal["products", "second_products", "attention"]
"""Results that selective checkpointing keeps: of all matrix products and attention (`products`), of every second
matrix product and attention (`second_products`), or of attention alone (`attention`)."""

DEFAULT: SelectiveKeeps = "products"
VALUES: tuple[SelectiveKeeps, ...] = ("products", "second_products", "attention")
OWN_CODE = "nobody has counted the products of your own code"
"""End of an error message: the reason why blocks of the user's own code keep the results of all products."""
NEEDS = "it needs activation_checkpointing ('selective')"
"""End of an error message: the value of another knob that a choice other than the default requires."""
NEEDED = "selective_keeps other than 'products' needs it"
"""End of an error message: the reason why another knob has only one value beside a choice other than the default."""

SELECTIVE_KEEPS = Knob(
    help="Results that selective checkpointing keeps: of all products and attention, of every second product and "
    "attention, or of attention alone.",
    name="selective checkpointing keeps",
    value_names={
        "products": "all products and attention",
        "second_products": "every 2nd product, and attention",
        "attention": "attention alone",
    },
    phrases={"second_products": "every 2nd product kept", "attention": "attention alone kept"},
    tries=VALUES,
    when=When(is_named=True, others={"activation_checkpointing": ("selective",)}),
    memory_order=("attention", "second_products", "products"),
    exports={
        "script": Written("the policy of `checkpointed`"),
        "accelerate": Written("a line of your script"),
        "training_arguments": Lost("has no selective checkpointing"),
        "torchtitan": Written("`SelectiveAC`, which keeps every second product; a policy in the file for `attention`"),
        "lightning": Written("a note: apply it in your module"),
    },
    when_text="the knob is limited and `activation_checkpointing` is `selective`; `products` alone with your own code; "
    "`attention` with `attention: sdpa`; `second_products` without float8 and DoRA",
    upstream="the policy of `torch.utils.checkpoint.create_selective_checkpoint_contexts`; `second_products` is torchtitan's "
    "`SelectiveAC`, `attention` the default of axolotl's `selective_checkpointing`",
)


def check(keeps: SelectiveKeeps, checkpointing: str) -> None:
    """Reject a choice of kept results for blocks without selective checkpointing.

    Raises:
        ValueError: names the fields, their values and the remedy.
    """
    if keeps != DEFAULT and checkpointing != "selective":
        raise ValueError(
            f"selective_keeps ({keeps!r}) says what selective checkpointing keeps, and activation_checkpointing "
            f"({checkpointing!r}) is another; set activation_checkpointing to 'selective', or selective_keeps to {DEFAULT!r}"
        )


def check_training(
    keeps: SelectiveKeeps,
    model: ModelSpec | None,
    attention: str,
    float8: Float8Recipe | None,
    adapter: AdapterSchema | None,
) -> None:
    """Reject a choice of kept results for a model, an attention, a numerical format or an adapter for which it has no
    meaning or was not compared, as far as is known before the model is built.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if keeps == DEFAULT:
        return
    why = OWN_CODE if model is not None and model.is_own else why_not(keeps, attention, float8, adapter)
    if why is not None:
        raise rejected(keeps, why)


def why_not(
    keeps: SelectiveKeeps, attention: str, float8: Float8Recipe | None, adapter: AdapterSchema | None
) -> str | None:
    """Return the reason why blocks cannot keep these results with an attention, a numerical format or an adapter, as
    the end of an error message. None if they can."""
    if keeps == "attention" and attention != "sdpa":
        return f"attention ({attention!r}) is not one of torch's kernels, whose results it keeps"
    if keeps == "second_products" and float8 is not None:
        return f"float8 ({float8}) has products of its own, which are recomputed in any case"
    if keeps == "second_products" and isinstance(adapter, Lora) and adapter.dora:
        return "dora (true) adds products of weights, with which it was not compared"
    return None


def rejected(keeps: SelectiveKeeps, why: str) -> ValueError:
    """Return the error for a training whose blocks cannot keep these results. `why` is the reason, as the end of the
    error message."""
    return ValueError(f"selective_keeps ({keeps!r}) is not for this training: {why}; use {DEFAULT!r}")

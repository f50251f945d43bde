"""Knob that limits the activations which compiled blocks keep for backward, and the configurations that cannot have
it."""

from shardtune.api_schemas.knobs import Knob, Lost, When, Written
from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.models import ModelSpec

NAMED = tuple(step / 20 for step in range(1, 21))
"""Budgets among which the user's limits of the search space select."""
OWN_CODE = "your own code may draw random numbers in its blocks, and backward would draw others (torch 2.13)"
"""End of an error message: the reason why blocks of the user's own code have no budget."""
EXPERTS = "its blocks route tokens to experts, and a repeated choice of experts was compared with no other training"
"""End of an error message: the reason why blocks with experts have no budget."""
NEEDS = "it needs compile (true), activation_checkpointing ('none') and no ZeRO stage 3"
"""End of an error message: values of other knobs that a budget below 1 requires."""
NEEDED = "activation_memory_budget below 1 needs it"
"""End of an error message: the reason why another knob has only one value beside a budget below 1."""

ACTIVATION_MEMORY_BUDGET = Knob(
    help="Part of its default activations that each compiled block keeps for backward, which recomputes the rest.",
    name="activation memory budget",
    phrases={"*": "activation budget {value}"},
    tries=(1.0, 0.5, 0.25),
    when=When(is_named=True, others={"compile": (True,), "activation_checkpointing": ("none",)}),
    exports={
        "script": Written("`torch._functorch.config`"),
        "accelerate": Written("a line of your script"),
        "training_arguments": Lost("compiles with the default budget"),
        "torchtitan": Written("`MemoryBudgetAC`"),
        "lightning": Written("a note: set it in your module"),
    },
    values_text="the budgets that you name, from 0.05 to 1 in steps of 0.05",
    when_text="the knob is limited, `compile` is `true` and `activation_checkpointing` is `none`; not at ZeRO stage 3, and not "
    "with your own code, experts, float8 or adapters",
    upstream="`torch._functorch.config.activation_memory_budget`, torchtitan's `MemoryBudgetAC`",
)


def check(budget: float, checkpointing: str, compiles: bool, *, gathers_in_blocks: bool) -> None:
    """Reject a budget for blocks that are not compiled, that are checkpointed, or whose graph is not whole.

    `gathers_in_blocks`: whether the backend gathers weights within a block, as ZeRO stage 3 does.

    Raises:
        ValueError: names the fields, their values and the remedy.
    """
    if budget == 1:
        return
    if not compiles:
        raise ValueError(
            f"activation_memory_budget ({budget}) is kept by the compiler, and compile (false) leaves blocks uncompiled; set compile "
            "to true, or activation_memory_budget to 1"
        )
    if checkpointing != "none":
        raise ValueError(
            f"activation_memory_budget ({budget}) with activation_checkpointing ({checkpointing!r}) would choose twice what a block "
            "keeps; set activation_checkpointing to 'none', or activation_memory_budget to 1"
        )
    if gathers_in_blocks:
        raise ValueError(
            f"activation_memory_budget ({budget}) with stage (3) would hold for each layer instead of each block, because gathers "
            "end the compiler's graph between layers; use stage 1 or 2, or set activation_memory_budget to 1"
        )


def check_training(
    budget: float, model: ModelSpec | None, float8: Float8Recipe | None, adapter: AdapterSchema | None
) -> None:
    """Reject a budget for the blocks of a model, a numerical format or an adapter with which it was not compared, as
    far as is known before the model is built.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if budget == 1:
        return
    why = OWN_CODE if model is not None and model.is_own else why_not(float8, adapter)
    if why is not None:
        raise rejected(budget, why)


def why_not(float8: Float8Recipe | None, adapter: AdapterSchema | None) -> str | None:
    """Return the reason why blocks have no budget with a numerical format or an adapter, as the end of an error
    message. None if they can have one."""
    if float8 is not None:
        return f"float8 ({float8}) was not compared with recomputed scales"
    if adapter is not None:
        return f"adapter ({adapter.kind}) was not compared with recomputed blocks"
    return None


def rejected(budget: float, why: str) -> ValueError:
    """Return the error for a training whose blocks cannot have a budget. `why` is the reason, as the end of the error
    message."""
    return ValueError(f"activation_memory_budget ({budget}) is not for this training: {why}; use 1")

"""Knob that keeps the inputs of checkpointed blocks in host memory, and the configurations that cannot have it."""

from shardtune.api_schemas.knobs import Knob, Lost, When, Written

ACTIVATION_OFFLOAD = Knob(
    help="Inputs of checkpointed blocks go to host memory in forward and come back in backward, one block ahead.",
    name="activation offload",
    phrases={"true": "blocks' inputs in host memory"},
    tries=(False, True),
    when=When(others={"activation_checkpointing": ("full",), "compile": (False,)}),
    # Less on the device is more on the host, which may lack it: neither value is the lightest.
    places_states=True,
    exports={
        "script": Written("`HostInputs`"),
        "accelerate": Written("`fsdp_activation_checkpointing_offload` under FSDP2, else a line of your script"),
        "training_arguments": Written('`"offload"` of `activation_checkpointing_kwargs`; lost under FSDP'),
        "torchtitan": Lost("keeps the inputs of checkpointed blocks on the GPU"),
        "lightning": Written("a note: apply it in your module"),
    },
    when_text="`activation_checkpointing` is `full`, `compile` is `false`, no pipeline stages or DeepCompile; and on GPUs these "
    "inputs take 256 MiB and 5 % of a rank's memory in a micro batch, or the knob is limited",
    upstream="transformers' and Accelerate's `activation_checkpointing_offload`, with a stream of its own for each direction",
)


def check(checkpointing: str, compiles: str | None, stages: int) -> None:
    """Reject a configuration in which the inputs of checkpointed blocks cannot be kept in host memory. `compiles` is
    the name of the field that compiles the blocks; None if it compiles none.

    Raises:
        ValueError: names the fields, their values and the remedy.
    """
    if checkpointing == "none":
        raise ValueError(
            "activation_offload (true) moves the inputs of checkpointed blocks, and activation_checkpointing ('none') keeps all "
            "activations on the device; set activation_checkpointing to 'full', or activation_offload to false"
        )
    if checkpointing == "selective":
        raise ValueError(
            "activation_offload (true) moves a block's input alone, and activation_checkpointing ('selective') keeps the results of "
            "matrix products on the device, which nobody has tried together; use 'full', or set activation_offload to false"
        )
    if compiles is not None:
        raise ValueError(
            f"activation_offload (true) with {compiles} (true) would compile the copies to the host, which nobody has tried; set one "
            "of them to false"
        )
    if stages > 1:
        raise ValueError(
            f"activation_offload (true) brings inputs back in the opposite order, which pipeline_parallel ({stages}) does not keep: "
            "several micro batches are under way at once; set activation_offload to false, or pipeline_parallel to 1"
        )

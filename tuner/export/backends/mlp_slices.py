"""MLPs over slices of the tokens in exported files: parts of `train_snippet.py`, and notes for programs whose scripts or
modules have to apply them."""

from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill

_NO_DROPOUT = "the MLP must have no dropout, since backward would drop other values than forward"
"""End of a note for a user's own script or module, whose model may have dropout, unlike that of a trial."""


def are_used(source: ExportSource) -> bool:
    """Whether the exported configuration computes each block's MLP in several slices."""
    return source.config.mlp_slices > 1


def constants(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that defines the number of slices; empty for an MLP over all tokens at once."""
    return [f"MLP_SLICES = {source.config.mlp_slices}"] if are_used(source) else []


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for MLPs in slices; empty for an MLP over all tokens at
    once."""
    return fill("mlp_slices") if are_used(source) else ""


def unkept_products(source: ExportSource) -> str:
    """Python condition that `train_snippet.py` adds to its selective checkpointing, so that it keeps no matrix product
    of a slice of the MLP; empty without slices."""
    return " and not Slice.running" if are_used(source) else ""


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on MLPs in slices for a user's own script under Accelerate."""
    if not are_used(source):
        return []
    instruction = "take slice_mlp, its classes and its loop from train_snippet.py"
    return [f"MLP in {source.config.mlp_slices} slices: {instruction}; {_NO_DROPOUT}"]


def lightning_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on MLPs in slices for Lightning, where the user's module has to apply them."""
    if not are_used(source):
        return ()
    count = source.config.mlp_slices
    return (
        f"mlp_slices: apply it in your module ({count} slices of the tokens): see {source.shown_in}; {_NO_DROPOUT}",
    )

"""Example of an answer for a service that has none yet; it was measured for the tutorial and is named as an example."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """Card that the home page shows as an example while the service has no answer. Its figures were measured on
    another machine."""

    source: str
    model: str
    cluster: str
    workload: str
    best: str
    facts: tuple[tuple[str, str], ...]
    """Pairs of name and value."""
    next_step: str


# The figures of docs/tutorials/first-study.md.
EXAMPLE = Example(
    source=(
        "These figures are not from your machines: the tutorial “Your first study” measured them on two CPU ranks. "
        "A card like this stands here for each model, workload and cluster that you tune."
    ),
    model="llama-tiny",
    cluster="2 CPU ranks",
    workload="sequence 64 · global batch 16",
    best="DDP, freed memory kept, micro batch 8",
    facts=(
        ("Gain", "1.68× (95 % interval 1.61 to 1.82), confirmed"),
        ("Speed", "5,280 tokens/s/GPU"),
        ("Peak memory", "101.7 MiB"),
        ("Cost", "some minutes: short trials, then pairs of the winner and the baseline"),
        ("Measured", "fresh, stale or unchecked: whether a machine still has the hardware and software"),
    ),
    next_step="Train with it: the export holds the files for your launcher.",
)

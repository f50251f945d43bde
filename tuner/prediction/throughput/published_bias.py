"""Bias of predicted speeds against published measurements of a card, as `benchmarks.predictor` finds it.

`tests/benchmarks/test_published_bias.py` holds the figures against the rows of the repository.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedBias:
    """Bias of the predictor, as the ratio of predicted to measured speed for published runs: above 1, predictions are
    too fast."""

    rows: int
    sources: int
    ratio: float
    """Ratio of predicted to measured speed: the median over sources of each source's median."""
    low: float
    """Smallest of the sources' median ratios; `high` is the largest."""
    high: float

    def describe(self, cards: str) -> str:
        """Describe the bias in one sentence, for the notes of a prediction."""
        return (
            f"speed: {self.rows} published bf16 rows of {cards} from {self.sources} sources are predicted at "
            f"{self.ratio:.2f} times the measured speed (median of the sources; {self.low:.2f} to {self.high:.2f})"
        )


CARDS: dict[str, str] = {"ampere": "A100", "hopper": "H100"}
"""Names of the cards whose published rows were compared with predictions, by GPU architecture."""
BF16: dict[str, PublishedBias] = {
    "ampere": PublishedBias(rows=324, sources=6, ratio=1.04, low=0.97, high=1.16),
    "hopper": PublishedBias(rows=112, sources=5, ratio=1.04, low=1.00, high=1.12),
}
"""Bias of predictions in bf16 that use the catalogue's rates without calibration, by GPU architecture."""


def note(architecture: str) -> str | None:
    """Return a sentence about the predictor's bias on cards of an architecture; None where no published rows were
    compared."""
    bias = BF16.get(architecture)
    return None if bias is None else bias.describe(CARDS[architecture])

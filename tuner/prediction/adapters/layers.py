"""Part of a model that is trained where an adapter freezes the rest: counts per block, and the activations that frozen
layers need not keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from shardtune.api_schemas.training import adapter_targets, quantization
from shardtune.api_schemas.training.adapters import AdapterSchema, LastLayers, Lora, quantization_of

_LLAMA = adapter_targets.LINEAR_LAYERS["llama"]
"""Linear layers of the block that estimates an unknown architecture."""


class SavedInputs(NamedTuple):
    """Inputs that a block's layers keep for the gradients of their own weights; a frozen layer keeps none."""

    norms: bool = True
    """Whether norms keep their normalised values."""
    attention: bool = True
    """Whether the projections of queries, keys or values keep their input."""
    output: bool = True
    """Whether the projection behind attention keeps its input."""
    mlp: bool = True
    """Whether the MLP's first products keep their input."""
    down: bool = True
    """Whether the MLP's last product keeps its input."""
    head: bool = True
    """Whether the output head keeps its input."""


@dataclass(frozen=True)
class AdaptedLayers:
    """Adapter on the blocks of a model, with the sizes of what it trains."""

    settings: AdapterSchema
    matrices: tuple[tuple[int, int], ...] = ()
    """Input and output width of each linear layer of a block that LoRA adapts."""
    parts: frozenset[str] = frozenset()
    """Parts of a block (`q`, `down`, …) whose linear layers LoRA adapts."""
    quantised: tuple[tuple[int, int], ...] = ()
    """Input and output width of each linear layer of a block whose frozen weight is kept in 4 bits."""

    @classmethod
    def of(cls, adapter: AdapterSchema, widths: Mapping[str, tuple[int, int]], model_type: str | None) -> Self:
        """Layers of one block that an adapter adapts; `widths`: input and output width of each part of the block.

        Raises:
            ValueError: a target matches nothing in a family whose layers are known.
        """
        if not isinstance(adapter, Lora):
            return cls(adapter)
        known = adapter_targets.linear_layers(model_type)
        layers = known or _LLAMA
        try:
            paths = adapter_targets.targeted_paths([*layers], adapter)
        except ValueError:
            if known is not None:
                raise
            # Names of another family, whose layers a worker counts: here an estimate by all layers of the block.
            paths = [*layers]
        parts = [layers[path] for path in paths]
        # Layers without an adapter are quantised, too.
        frozen = () if quantization_of(adapter) is None else tuple(widths[part] for part in layers.values())
        return cls(adapter, tuple(widths[part] for part in parts), frozenset(parts), frozen)

    @property
    def rank(self) -> int:
        """Rank of the added matrices, 0 where none are added."""
        return self.settings.rank if isinstance(self.settings, Lora) else 0

    @property
    def packed_weights(self) -> int:
        """Number of elements of a block that are kept in 4 bits."""
        return sum(inputs * outputs for inputs, outputs in self.quantised)

    @property
    def largest_packed(self) -> int:
        """Number of elements of the largest weight in 4 bits, which products unpack one at a time."""
        return max((inputs * outputs for inputs, outputs in self.quantised), default=0)

    @property
    def has_packed_scales(self) -> bool:
        """Whether the scales of weights in 4 bits are quantised, too."""
        return isinstance(self.settings, Lora) and self.settings.double_quantization

    @property
    def scale_bytes(self) -> float:
        """Bytes of a 4-bit weight's part of the scales."""
        return quantization.scale_bytes(self.has_packed_scales)

    @property
    def normed(self) -> tuple[tuple[int, int], ...]:
        """Input and output width of each linear layer of a block the lengths of whose rows are trained, too (DoRA)."""
        return self.matrices if isinstance(self.settings, Lora) and self.settings.dora else ()

    @property
    def added(self) -> int:
        """Number of elements that the adapter adds to a block."""
        magnitudes = sum(outputs for _, outputs in self.normed)
        return self.rank * sum(inputs + outputs for inputs, outputs in self.matrices) + magnitudes

    def trained_blocks(self, layers: int) -> int:
        """Number of blocks with trained parameters; backward does not pass the blocks before them."""
        return min(self.settings.layers, layers) if isinstance(self.settings, LastLayers) else layers

    @property
    def saved(self) -> SavedInputs:
        """Inputs that the layers of a trained block keep."""
        if isinstance(self.settings, LastLayers):
            return SavedInputs(head=False)
        return SavedInputs(
            norms=False,
            attention=bool(self.parts & {"q", "k", "v", "qkv"}),
            output="o" in self.parts,
            mlp=bool(self.parts & {"gate", "up"}),
            down="down" in self.parts,
            head=False,
        )

"""Part of a model that is trained where an adapter freezes the rest: counts per block, and the activations that frozen
layers need not keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from shardtune.api_schemas.training import adapter_targets, quantization
from shardtune.api_schemas.training.adapters import AdapterSchema, LastLayers, Lora, quantization_of

_LLAMA = adapter_targets.LINEAR_LAYERS["llama"]
"""Names of the linear layers in a Llama block, which stands in for the block of an unknown architecture."""


class SavedInputs(NamedTuple):
    """Flags that say which layers of a block save their input, which backward needs for the gradients of their own
    weights; a frozen layer saves none."""

    norms: bool = True
    """Whether norms save their normalised values for backward."""
    attention: bool = True
    """Whether the projections of queries, keys or values save their input for backward."""
    output: bool = True
    """Whether the output projection of attention saves its input for backward."""
    mlp: bool = True
    """Whether the first linear layers of the MLP (gate and up) save their input for backward."""
    down: bool = True
    """Whether the last linear layer of the MLP (down) saves its input for backward."""
    head: bool = True
    """Whether the output head saves its input for backward."""


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
        """Find the layers of one block that an adapter adapts; `widths`: input and output width of each part of the
        block.

        Raises:
            ValueError: a target module of the adapter matches no layer, in a model family whose layers are known.
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
        """Rank of the LoRA matrices that the adapter adds; 0 for an adapter that adds none."""
        return self.settings.rank if isinstance(self.settings, Lora) else 0

    @property
    def packed_weights(self) -> int:
        """Number of elements of a block that are kept in 4 bits."""
        return sum(inputs * outputs for inputs, outputs in self.quantised)

    @property
    def largest_packed(self) -> int:
        """Number of elements of the largest weight kept in 4 bits; matrix products unpack one such weight at a time."""
        return max((inputs * outputs for inputs, outputs in self.quantised), default=0)

    @property
    def has_packed_scales(self) -> bool:
        """Whether the scales of weights in 4 bits are quantised, too."""
        return isinstance(self.settings, Lora) and self.settings.double_quantization

    @property
    def scale_bytes(self) -> float:
        """Bytes of quantisation scales for each element of a 4-bit weight."""
        return quantization.scale_bytes(self.has_packed_scales)

    @property
    def normed(self) -> tuple[tuple[int, int], ...]:
        """Input and output width of each linear layer of a block for which DoRA also trains magnitudes (lengths of the
        weight's rows)."""
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
        """Flags that say which layers of a trained block save their input for backward."""
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

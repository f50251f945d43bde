"""Counted shape: a model's parameter and FLOP counts from a worker's model summary, beside its widths."""

from dataclasses import dataclass
from functools import cached_property

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.tuner.prediction.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class TracedShape(ModelShape):
    """Model shape whose parameters and FLOPs a worker counted on the built model instead of computing them by
    formula."""

    counted: ModelSummary
    estimated: bool = False
    """Whether the model's widths inside a block are estimated rather than known."""

    @property
    def knows_products(self) -> bool:
        """Whether the widths and the order of a block's matrix products are known."""
        return not self.estimated

    @property
    def attends_eagerly(self) -> bool:
        """Whether the worker built the model with eager attention, because its architecture has no fused one."""
        return self.counted.attention == "eager"

    @cached_property
    def block_parameters(self) -> int:
        """Number of elements of one block, on average over the blocks, with those that an adapter adds."""
        counted = sum(block.parameters for block in self.counted.blocks) // len(self.counted.blocks)
        return counted + self._uncounted

    @cached_property
    def matrix_parameters(self) -> int:
        """Number of elements of all matrices in blocks; by formula where the worker has not counted them."""
        counts = [block.matrix_parameters for block in self.counted.blocks]
        by_formula = min(super().matrix_parameters, sum(block.parameters for block in self.counted.blocks))
        return by_formula if None in counts else sum(count or 0 for count in counts)

    @cached_property
    def outside_parameters(self) -> int:
        """Number of elements of the parameters in no block."""
        return self.counted.outside_blocks

    @property
    def parameters(self) -> int:
        """Number of elements of all distinct parameters."""
        return self.counted.parameters + self.layers * self._uncounted

    @property
    def added_parameters(self) -> int:
        """Number of elements that an adapter adds to one block, as the worker counted if it built the adapter."""
        if self.adapter is None or not self.adapter.rank or not self._counts_adapter:
            return super().added_parameters
        return self.counted.trainable // self.layers

    @property
    def _counts_adapter(self) -> bool:
        """Whether the worker counted the model with its adapter."""
        return self.counted.trainable < self.counted.parameters

    @property
    def _uncounted(self) -> int:
        """Number of elements that an adapter adds to one block, if the worker counted the model without its adapter;
        else 0."""
        return 0 if self._counts_adapter else super().added_parameters

    @cached_property
    def largest_parameter(self) -> int:
        """Number of elements of the largest single parameter."""
        return max(self.embedding_parameters, *(block.largest_parameter for block in self.counted.blocks))

    @property
    def context(self) -> tuple[int | None, str | None]:
        """Number of attention heads that ranks may divide (context parallel), and the reason why no ranks can, as the
        worker counted."""
        return self.counted.context_heads, self.counted.context_note

    @property
    def tensor(self) -> tuple[int | None, str | None]:
        """Divisor of the widths that ranks may split (tensor parallel), and the reason why no ranks can, as the worker
        counted."""
        return self.counted.tensor_divisor, self.counted.tensor_note

    @property
    def pipeline(self) -> tuple[int | None, str | None]:
        """Number of blocks that pipeline stages may divide, and the reason why no stages can, as the worker counted."""
        return self.counted.pipeline_blocks, self.counted.pipeline_note

    @property
    def divisible_experts(self) -> tuple[int | None, int | None, str | None]:
        """Number and width of the experts that ranks may divide, and the reason why no ranks can, as the worker
        counted."""
        return self.counted.experts, self.counted.expert_width, self.counted.expert_note

    @property
    def expert_parameters(self) -> int:
        """Number of elements of one block's experts."""
        if self.experts > 1:
            return super().expert_parameters
        # The shape does not know the number of experts: at least the elements that a token does not visit are in
        # experts.
        return (self.counted.parameters - self.counted.active_parameters) // self.layers

    @property
    def active_parameters(self) -> int:
        """Number of parameter elements that take part in one token's forward pass."""
        return self.counted.active_parameters

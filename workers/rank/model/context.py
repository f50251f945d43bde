"""Context parallel: neighbouring ranks share samples, and each takes an equal part of the sequence.

Every layer except attention treats positions independently. Attention exchanges parts of the sequence for parts of the heads, and back
(DeepSpeed-Ulysses, arXiv:2309.14509); `api_schemas.strategies.context_parallel` decides which models can take part.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy, pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from shardtune.api_schemas.strategies import context_parallel
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.rank.model import shared_heads
from shardtune.workers.rank.model.chunk_math import IGNORED
from shardtune.workers.rank.model.chunked_loss import ChunkedLoss
from shardtune.workers.rank.rank_context import RankContext

_ATTENTION = "shardtune_context"


@dataclass(frozen=True)
class ContextGroup:
    """Group of ranks that share each sample (context parallelism), in the order of their parts of the sequence; this
    rank is one of them."""

    mesh: DeviceMesh

    def prepare(self, model: nn.Module) -> None:
        """Replace the model's attention, so that each rank attends over whole sequences with a part of the heads."""
        AttentionInterface.register(_ATTENTION, self._attend)
        AttentionMaskInterface.register(_ATTENTION, self._mask)
        model.set_attn_implementation(_ATTENTION)  # type: ignore[operator]

    def loss(self, model: nn.Module, tokens: torch.Tensor, chunked: ChunkedLoss | None = None) -> torch.Tensor:
        """Cross entropy of this rank's part of the samples. It is scaled so that its mean over the group's ranks is the
        loss of the whole samples.

        `chunked` computes it in chunks of tokens; if None, it is computed from all logits.
        """
        samples, length = tokens.shape
        part = length // self.mesh.size()
        first = part * self.mesh.get_local_rank()
        next_tokens = pad(tokens, (0, 1), value=IGNORED)[:, first + 1 : first + part + 1]
        positions = torch.arange(first, first + part, device=tokens.device).expand(samples, -1)
        local_tokens = tokens[:, first : first + part]
        if chunked is not None:
            total = chunked.sum_over(model, next_tokens, input_ids=local_tokens, position_ids=positions)
        else:
            logits = model(input_ids=local_tokens, position_ids=positions, use_cache=False).logits.float()
            total = cross_entropy(logits.flatten(0, 1), next_tokens.flatten(), ignore_index=IGNORED, reduction="sum")
        # Gradients and losses are averaged over all ranks, and `mesh.size()` of them hold parts of the same samples.
        return total * (self.mesh.size() / (samples * (length - 1)))

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attention function for transformers. Its inputs have the shape [samples, heads, positions, width], its output
        [samples, positions, heads, width]."""
        full_sequences = [self._exchange(part) for part in (query, key, value)]
        attended, _ = sdpa_attention_forward(module, *full_sequences, attention_mask, **options)
        return self._exchange(attended), None

    def _mask(self, batch_size: int, q_length: int, kv_length: int, **options: Any) -> torch.Tensor | None:
        """Make the attention mask that the model would use for the whole sequence: causal, or with the model's
        attention windows."""
        size = self.mesh.size()
        mask: torch.Tensor | None = sdpa_mask(
            batch_size=batch_size, q_length=q_length * size, kv_length=kv_length * size, **options
        )
        return mask

    def _exchange(self, local: torch.Tensor) -> torch.Tensor:
        """Exchange parts of a tensor among ranks by all-to-all: its shape changes from [samples, a, b, width] to
        [samples, a / ranks, b × ranks, width]. Backward does the opposite."""
        # Not by DTensor's `redistribute`, which gathers the whole tensor on CPU ranks (2.13).
        ranks = self.mesh.size()
        samples, split, joined, width = local.shape
        parts = local.reshape(samples, ranks, split // ranks, joined, width).movedim(1, 0).contiguous()
        received = all_to_all_single_autograd(parts, None, None, self.mesh.get_group())
        return received.movedim(0, 2).reshape(samples, split // ranks, ranks * joined, width)


def group_of(task: TrialTask, place: RankContext) -> ContextGroup | None:
    """Group of ranks with neighbouring numbers that share each sample; None without context parallelism. All ranks must
    call this together.

    Raises:
        ValueError: the model's heads or the sequence cannot be divided among that many ranks.
    """
    size = task.config.context_parallel
    if size == 1:
        return None
    strategy = task.config.strategy
    context_parallel.check(size, task.cluster, task.workload, task.model, split=strategy.model_parallel)
    # Neighbouring ranks, so that a group lies within a host where it fits; pipeline stages are outermost.
    split = strategy.model_parallel // strategy.stages
    shared = shared_heads.of(task.model, task.workload)
    context_parallel.check_heads(size, shared.context_heads, shared.context_note)
    axes = (place.world_size // (size * split), size, split)
    mesh = init_device_mesh(place.device.type, axes, mesh_dim_names=("data", "context", "model"))
    return ContextGroup(mesh["context"])

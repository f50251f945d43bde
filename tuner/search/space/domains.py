"""Domains: candidate values of knobs, derived from the model, the workload and the cluster rather than from fixed
lists."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from shardtune.api_schemas.base import DTYPE_BYTES, GIB
from shardtune.api_schemas.divisors import divisors
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import (
    adapter_support,
    context_parallel,
    expert_parallel,
    losses,
    pipeline_parallel,
    ragged_support,
    tensor_parallel,
)
from shardtune.api_schemas.strategies.fields import float8_gather, memory_budget, mlp_slices, selective_keeps
from shardtune.api_schemas.strategies.fields.selective_keeps import SelectiveKeeps
from shardtune.api_schemas.strategies.losses import Loss
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS, SCHEDULES, PipelineSchedule, obstacle
from shardtune.api_schemas.strategies.recipe_support import float8_support, fp16_support, lora_support
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.workload import Workload, gradient_accumulation

T = TypeVar("T")


_BYTES_PER_LOGIT = 12
"""Bytes per logit of the float32 values that exist when the loss's memory peaks: log-softmax, its gradient, and the
loss's gradient."""
_LEAST_LOGITS = 256 << 20
"""Minimum bytes of logits for which the search tries to compute the loss in chunks."""
_LEAST_INPUTS = 256 << 20
"""Minimum bytes of the blocks' inputs for which the search tries to offload them."""
_LEAST_ACTIVATIONS = 256 << 20
"""Minimum bytes of the activations inside one block's MLP for which the search tries to compute MLPs in slices."""
_LEAST_SHARE = 0.05
"""Fraction of a rank's memory from which tensors count as large. The search tries to compute the loss in chunks only if
logits take at least this fraction. The same holds for offloading with blocks' inputs, and for slices of the MLP with
one MLP's activations."""


@dataclass(frozen=True)
class Domains:
    """Candidate values of each knob for one study."""

    workload: Workload
    cluster: Cluster
    model_summary: ModelSummary
    cores: int | None = None
    """Number of CPU cores of each node, None until a worker has reported it."""

    @cached_property
    def world(self) -> int:
        """Number of ranks in every trial; ranks that share samples count individually."""
        return self.cluster.world_size

    @cached_property
    def on_gpu(self) -> bool:
        """Whether ranks run on GPUs; on gloo CPU ranks, overlap, pinning and prefetch depth have no effect."""
        return self.cluster.device == "cuda"

    @cached_property
    def offloads_optimizer(self) -> bool:
        """Whether the host's CPU may run the optimizer step: only for GPU ranks, and with an optimizer that the CPU can
        run."""
        return self.on_gpu and self.workload.optimizer.offloads

    @cached_property
    def offloads_shards(self) -> bool:
        """Whether FSDP may keep its shards in host memory, where the host's CPU runs the optimizer step."""
        return self.offloads_optimizer and not self.workload.precision.scales_loss

    @cached_property
    def context_parallel(self) -> tuple[tuple[int, ...], str | None]:
        """Numbers of ranks that may share a sample (context parallel), and the reason why there are no more, or
        None."""

        def check(size: int) -> None:
            ragged_support.check_axis("context_parallel", size, self.workload.data)
            float8_support.check_axis("context_parallel", size, self.workload.float8)
            lora_support.check_axis("context_parallel", size, self.workload.adapter)
            fp16_support.check_axis("context_parallel", size, self.workload.precision)
            context_parallel.check(size, self.cluster, self.workload, model_summary=self.model_summary)

        return context_parallel.legal_divisors(self.world, check)

    def tensor_parallel(self, context: int) -> tuple[tuple[int, ...], str | None]:
        """Numbers of ranks that may split a model (tensor parallel) where `context` ranks share a sequence, and the
        reason why there are no more, or None."""

        def check(size: int) -> None:
            adapter_support.check_axis("tensor_parallel", size, self.workload.adapter)
            ragged_support.check_axis("tensor_parallel", size, self.workload.data)
            float8_support.check_axis("tensor_parallel", size, self.workload.float8)
            fp16_support.check_axis("tensor_parallel", size, self.workload.precision)
            tensor_parallel.check(size, context, self.cluster, self.workload, model_summary=self.model_summary)

        return self._once(("tensor", context), lambda: context_parallel.legal_divisors(self.world, check))

    def pipeline_parallel(self, sharing: int) -> tuple[tuple[int, ...], str | None]:
        """Numbers of pipeline stages where `sharing` ranks share samples in each stage, and the reason why there are no
        more, or None."""

        def check(stages: int) -> None:
            adapter_support.check_axis("pipeline_parallel", stages, self.workload.adapter)
            ragged_support.check_axis("pipeline_parallel", stages, self.workload.data)
            float8_support.check_axis("pipeline_parallel", stages, self.workload.float8)
            fp16_support.check_axis("pipeline_parallel", stages, self.workload.precision)
            pipeline_parallel.check_blocks(stages, self.model_summary.pipeline_blocks, self.model_summary.pipeline_note)
            pipeline_parallel.check_ranks(stages, self.world // sharing)
            samples = gradient_accumulation(self.workload.global_batch, 1, self.world // (sharing * stages))
            pipeline_parallel.check(stages, samples)

        return self._once(("pipeline", sharing), lambda: context_parallel.legal_divisors(self.world, check))

    def pipeline_schedules(self, sharing: int, stages: int) -> tuple[PipelineSchedule, ...]:
        """Names of the pipeline schedules for which the model has enough blocks and a step has a suitable number of
        micro batches."""
        has_enough_blocks = (self.model_summary.pipeline_blocks or 1) >= 2 * stages
        interleaved = {name for name in SCHEDULES if FACTS[name].is_interleaved}
        return tuple(
            name
            for name in SCHEDULES
            if name not in interleaved or (has_enough_blocks and self.micro_batches(sharing * stages, stages, name))
        )

    def virtual_stages(self, stages: int, schedule: str) -> tuple[int, ...]:
        """Numbers of pipeline stages that each rank may have under a schedule."""
        if not FACTS[schedule].is_interleaved:
            return (1,)
        if FACTS[schedule].is_v:
            return (2,)
        blocks = self.model_summary.pipeline_blocks or 1
        # Uneven stages leave every rank waiting for the fullest, so only even splits are tried, and 2 where there are
        # none.
        even = (k for k in range(2, blocks // stages + 1) if blocks % (k * stages) == 0)
        return tuple(even) or (2,)

    def expert_parallel(self, split: int, tensor: int) -> tuple[tuple[int, ...], str | None]:
        """Numbers of ranks that may divide a model's experts (expert parallel), and the reason why there are no more,
        or None.

        `split` is the number of ranks that split a model, `tensor` the number among them that split its blocks by
        width.
        """

        def check(size: int) -> None:
            adapter_support.check_axis("expert_parallel", size, self.workload.adapter)
            ragged_support.check_axis("expert_parallel", size, self.workload.data)
            float8_support.check_axis("expert_parallel", size, self.workload.float8)
            fp16_support.check_axis("expert_parallel", size, self.workload.precision)
            expert_facts = self.model_summary.experts, self.model_summary.expert_width, self.model_summary.expert_note
            expert_parallel.check_experts(size, size, *expert_facts)
            expert_parallel.check(size, self.world // split, tensor)

        return self._once(("expert", split, tensor), lambda: context_parallel.legal_divisors(self.world, check))

    def expert_shards(self, experts: int, shards: tuple[int, ...]) -> tuple[int, ...]:
        """Sharding sizes among `shards` with which `experts` ranks can divide a model's experts."""
        if experts == 1:
            return shards
        expert_facts = self.model_summary.experts or 1, self.model_summary.expert_width or 1
        ranks = (shard for shard in shards if shard % experts == 0)
        return tuple(k for k in ranks if expert_parallel.sharded_axis(experts, k, *expert_facts) is not None)

    def micro_batches(self, sharing: int, stages: int = 1, schedule: str = "1f1b") -> tuple[int, ...]:
        """Micro batch sizes that divide one rank's part of the global batch, where `sharing` ranks share samples.

        Each micro batch size leaves a micro batch for every stage, in as many rounds as the schedule needs.

        Raises:
            IndivisibleBatch: the ranks do not divide the global batch.
        """

        def list_sizes() -> tuple[int, ...]:
            sizes = divisors(gradient_accumulation(self.workload.global_batch, 1, self.world // sharing))
            steps = ((size, self.accumulation(size, sharing)) for size in sizes)
            return tuple(size for size, count in steps if count >= stages and obstacle(schedule, stages, count) is None)

        return self._once(("micro_batch", sharing, stages, schedule), list_sizes)

    def accumulation(self, micro_batch: int, sharing: int) -> int:
        """Number of micro batches per step of a rank, at least 1 (a micro batch that is not from the space need not
        divide the batch)."""
        return max(1, self.workload.global_batch * sharing // (micro_batch * self.world))

    @cached_property
    def zero_stages(self) -> tuple[int, ...]:
        """ZeRO stages that can train the workload; empty where all can."""
        if self.workload.float8 is not None:
            return float8_support.ZERO_STAGES
        return () if quantization_of(self.workload.adapter) is None else lora_support.ZERO_STAGES

    def why_no_float8_gather(self, shards: int) -> str | None:
        """Reason why FSDP2 cannot gather weights in float8 with a number of shards; None if it can, as far as is known
        before the model is built. The reason is worded as the end of a sentence."""
        if self.workload.float8 != float8_gather.RECIPE:
            return float8_gather.NEEDS
        if shards == 1:
            return float8_gather.ALONE
        # The width of the blocks is that of some of their layers; a rank checks all of them.
        is_uneven = not self._is_own_code and self.model_summary.hidden_size % shards > 0
        return float8_gather.UNEVEN if is_uneven else None

    @cached_property
    def losses(self) -> tuple[tuple[Loss, ...], str | None]:
        """Ways to compute the loss (whole or in chunks) that the model allows, and the reason why there are no more, or
        None."""
        try:
            losses.check("chunked", model_summary=self.model_summary)
        except ValueError as error:
            return ("full",), str(error)
        return ("full", "chunked"), None

    @cached_property
    def loss_chunks(self) -> tuple[int, ...]:
        """Candidate numbers of tokens in a chunk of the loss: the default, fewer, and four times as many."""
        return tuple(losses.DEFAULT_CHUNK * 4**power // 16 for power in range(4))

    def loss_matters(self, micro_batch: int, sharing: int) -> bool:
        """Whether the logits of a whole micro batch take enough of a rank's memory to try chunks, where `sharing` ranks
        share its tokens or the vocabulary."""
        tokens = micro_batch * self.workload.longest_row
        logits = _BYTES_PER_LOGIT * tokens * self.model_summary.vocab_size / sharing
        return tokens > losses.DEFAULT_CHUNK and logits >= max(
            _LEAST_LOGITS, _LEAST_SHARE * self.cluster.memory_gib * GIB
        )

    def inputs_matter(self, micro_batch: int, sharing: int) -> bool:
        """Whether the inputs of all blocks take enough of a GPU's memory to try them in host memory, where `sharing`
        ranks share the positions of a micro batch."""
        precision = self.workload.precision
        size = 4 if precision.autocast else DTYPE_BYTES[precision.compute_dtype]
        tokens = micro_batch * self.workload.longest_row
        inputs = size * tokens * self.model_summary.hidden_size * len(self.model_summary.blocks) / sharing
        return self.on_gpu and inputs >= max(_LEAST_INPUTS, _LEAST_SHARE * self.cluster.memory_gib * GIB)

    def why_no_mlp_slices(self, backend: str) -> str | None:
        """Reason why a backend cannot compute this model's MLPs in slices; None if it can. The reason is worded as the
        end of a sentence."""
        summary, workload = self.model_summary, self.workload
        if summary.step_trace is not None:
            # A summary may lack the note, but only the user's own code is traced.
            return mlp_slices.OWN_CODE
        return summary.mlp_note or mlp_slices.why_not(backend, workload.float8, workload.adapter)

    @cached_property
    def why_no_memory_budget(self) -> str | None:
        """Reason why blocks of this model have no budget of activations; None if they can have one. The reason is
        worded as the end of a sentence."""
        summary, workload = self.model_summary, self.workload
        if self._is_own_code:
            return memory_budget.OWN_CODE
        # Not the number of experts, which is 1 where ranks cannot divide them.
        if summary.moe_class is not None:
            return memory_budget.EXPERTS
        return memory_budget.why_not(workload.float8, workload.adapter)

    @cached_property
    def kept_results(self) -> tuple[tuple[SelectiveKeeps, ...], str | None]:
        """Choices of the results that selective checkpointing keeps with which this model can train, and the reason why
        there are no more, or None. The reason is worded as the end of a sentence."""
        workload = self.workload
        if self._is_own_code:
            return (selective_keeps.DEFAULT,), selective_keeps.OWN_CODE
        # A worker that built the model knows whether transformers has a fused attention for it.
        attention = self.model_summary.attention or workload.attention
        reasons = {
            keeps: selective_keeps.why_not(keeps, attention, workload.float8, workload.adapter)
            for keeps in selective_keeps.VALUES
        }
        legal = tuple(keeps for keeps, reason in reasons.items() if reason is None)
        return legal, "; ".join(reason for reason in reasons.values() if reason is not None) or None

    @property
    def _is_own_code(self) -> bool:
        # Only the user's own code is traced, and scripts cannot be.
        return self.model_summary.step_trace is not None or self.model_summary.trace_failure is not None

    def mlp_matters(self, micro_batch: int, sharing: int) -> bool:
        """Whether the activations inside one block's MLP take enough of a rank's memory to try slices, where `sharing` ranks
        share the positions of a micro batch."""
        size, tokens = (
            DTYPE_BYTES[self.workload.precision.compute_dtype],
            micro_batch * self.workload.longest_row / sharing,
        )
        return size * tokens * self._mlp_width >= max(_LEAST_ACTIVATIONS, _LEAST_SHARE * self.cluster.memory_gib * GIB)

    @cached_property
    def _mlp_width(self) -> float:
        # A summary has no width of MLPs. A block has about as many parameters for each input as its MLP saves values.
        summary = self.model_summary
        return max((block.parameters for block in summary.blocks), default=0) / max(summary.hidden_size, 1)

    @cached_property
    def checkpoint_every(self) -> tuple[int, ...]:
        """Intervals of activation checkpointing to try: every block, and every 2nd, 3rd and 4th block if the model has
        enough blocks."""
        return tuple(k for k in (1, 2, 3, 4) if k == 1 or k <= len(self.model_summary.blocks))

    @cached_property
    def threads(self) -> tuple[int, ...]:
        """Numbers of threads of a CPU rank: 0 (its equal part of the cores), or half of that part."""
        cores_per_rank = 0 if self.on_gpu else (self.cores or 0) // self.cluster.gpus_per_node
        # Half, because two hardware threads of a core may slow each other down.
        return (0, cores_per_rank // 2) if cores_per_rank > 1 else (0,)

    def reshard_groups(self, shard: int) -> tuple[int, ...]:
        """Candidate numbers of ranks in a group that keeps one whole copy of the parameters between forward and
        backward."""
        host = self.cluster.gpus_per_node
        # Groups within a host come first: its links are faster.
        return self._once(
            ("reshard", shard), lambda: tuple(sorted(divisors(shard)[1:-1], key=lambda size: host % size != 0))
        )

    def backend_sizes(self, make: Callable[["Domains"], T]) -> T:
        """Candidate sizes of one backend's knobs, computed once."""
        if make not in self._sizes:
            self._sizes[make] = make(self)
        sizes: T = self._sizes[make]
        return sizes

    @cached_property
    def _sizes(self) -> dict[Any, Any]:
        return {}

    def _once(self, key: tuple[str | int, ...], compute: Callable[[], T]) -> T:
        """Return a value that is computed at the first request only: one walk through the space asks a thousand times
        for the sizes of meshes, and 73,920 ranks have a hundred divisors to check each time."""
        if key not in self._sizes:
            self._sizes[key] = compute()
        value: T = self._sizes[key]
        return value

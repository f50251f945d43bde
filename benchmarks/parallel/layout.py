"""One layout of a training over tensor, pipeline and data parallel ranks, and what it is a layout of."""

from dataclasses import dataclass
from typing import Literal

from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates


@dataclass(frozen=True)
class Program:
    """Properties of a training program that do not depend on the layout."""

    weights: float
    """Bytes per parameter of weights and whole gradients, beside the optimizer's."""
    optimizer: float
    """Bytes per parameter of masters and moments, which ZeRO-1 shards over the data ranks."""
    accumulated: float
    """Bytes of memory traffic per parameter with which a micro batch's gradients are added up."""
    reduced: float
    """Bytes per parameter that data ranks reduce."""
    by_cost: bool
    """Stages get blocks by their share of the cost, the output head counted; else as many blocks each."""
    splits_logits: bool
    """Tensor ranks compute the loss over their part of the vocabulary; else each holds all logits."""
    link_share: float
    """Fraction of a link's bandwidth, for the collectives of tensor ranks: less where computation waits for each of
    them."""
    wait_s: float = 0.0
    """Waiting of data ranks for one another in a micro batch, for each doubling of the hosts."""
    tensor_wait_s: float = 0.0
    """Wait of tensor ranks in a collective, for each doubling of them."""


NANOTRON = Program(
    weights=6,
    optimizer=12,
    accumulated=10,
    reduced=4,
    by_cost=True,
    splits_logits=True,
    link_share=0.75,
    wait_s=0.018,
    tensor_wait_s=9e-5,
)
"""bf16 weights, fp32 gradients that every micro batch adds to, fp32 masters and moments; collectives of tensor ranks run
beside products. What its ranks wait is the residual of its many-host tables, which share a cluster with others."""
SCALING = Program(weights=4, optimizer=12, accumulated=6, reduced=2, by_cost=False, splits_logits=False, link_share=0.4)
"""Aleph Alpha's: bf16 weights and gradients, fp32 masters and moments."""


@dataclass(frozen=True)
class Training:
    """Trained model, its program and its machine."""

    shape: ModelShape
    sequence: int
    global_batch: int
    program: Program
    rates: Rates
    network: Network
    memory_bytes: float
    """Memory of a GPU."""
    gpu: str


@dataclass(frozen=True)
class Layout:
    """Layout of the ranks: neighbouring ranks are tensor parallel, then come data ranks, then stages."""

    dp: int
    tp: int
    pp: int
    micro_batch: int
    zero: bool
    """ZeRO-1."""
    sequence_parallel: bool
    """Norms and the residual stream are split over tensor ranks, too."""
    checkpointing: bool
    """Whether every block is checkpointed."""
    attention: Literal["flash", "fused", "torch"] = "flash"
    """`torch` and `fused` keep the scores; `fused` has softmax and mask in one kernel."""
    fused_norms: bool = True

    def micro_batches(self, training: Training) -> int:
        """Micro batches of a step, on each data rank."""
        return training.global_batch // (self.dp * self.micro_batch)


def blocks_of_stages(training: Training, stages: int) -> list[int]:
    """Blocks of each stage, first to last."""
    shape = training.shape
    if not training.program.by_cost:
        return [shape.layers // stages + (stage < shape.layers % stages) for stage in range(stages)]
    share = (shape.layers * shape.block_parameters + shape.embedding_parameters) / stages
    counts, stage, cost = [0] * stages, 0, 0.0
    for _ in range(shape.layers):
        if cost + shape.block_parameters / 2 > share * (stage + 1) and stage < stages - 1:
            stage += 1
        counts[stage] += 1
        cost += shape.block_parameters
    return counts


def parameters_of_stages(training: Training, layout: Layout) -> list[float]:
    """Parameters of one rank of each stage: the first has the table of tokens, the last the head, with a copy of a tied
    one."""
    shape, last = training.shape, layout.pp - 1
    tables = [(stage == 0) + (stage == last and not (shape.tied and last == 0)) for stage in range(layout.pp)]
    blocks = blocks_of_stages(training, layout.pp)
    return [
        (count * shape.block_parameters + table * shape.embedding_parameters) / layout.tp
        for count, table in zip(blocks, tables, strict=True)
    ]

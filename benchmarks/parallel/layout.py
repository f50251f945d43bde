"""One layout of a training over tensor, pipeline and data parallel ranks, and the training program that ran it."""

from dataclasses import dataclass, field

from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates


@dataclass(frozen=True)
class Program:
    """Facts about a training program, in the terms of the product's predictor."""

    implementation: Implementation
    dtypes: Dtypes


NANOTRON = Program(
    Implementation(
        main_gradients=True,
        stages_by_cost=True,
        regathers_inputs=True,
        step_host_s=0.025,
        spanning_exchange_s=0.0003,
    ),
    Dtypes(),
)
"""nanotron: bf16 weights, fp32 gradients that every micro batch adds to, fp32 masters and moments; tensor ranks split
positions and the vocabulary and gather inputs again for backward. `spanning_exchange_s` is what its sweeps show and no
source explains (docs/measurements/parallel.md)."""
SCALING = Program(Implementation(splits_logits=False, fused_optimizer=True), Dtypes(reduce=2))
"""Aleph Alpha's: bf16 weights and gradients, fp32 masters and moments (ZeRO-1); each tensor rank holds all logits."""


@dataclass(frozen=True)
class Training:
    """Trained model, its program and its machine."""

    shape: ModelShape
    sequence: int
    global_batch: int
    program: Program
    rates: Rates = field(hash=False)
    network: Network = field(hash=False)
    memory_bytes: float
    """Bytes of a GPU's memory that a training can use."""
    gpu: str


@dataclass(frozen=True)
class Layout:
    """Layout of the ranks: neighbouring ranks are tensor parallel, then come data ranks, then stages."""

    dp: int
    tp: int
    pp: int
    micro_batch: int
    zero: bool
    """Whether the optimizer states are sharded (ZeRO-1)."""
    checkpointing: bool
    """Whether every block is checkpointed."""

    @property
    def ranks(self) -> int:
        """Number of GPUs."""
        return self.dp * self.tp * self.pp

    def micro_batches(self, training: Training) -> int:
        """Number of micro batches of a step, on each data rank."""
        return training.global_batch // (self.dp * self.micro_batch)

"""Model shape: dimensions of a transformer, with the numbers of parameters and FLOPs computed by formula.

`tuner.prediction.shapes.config_shape` reads them from a `config.json`; a worker's counts replace formulas in the modules
beside it. Activations are in tuner.prediction.footprint, times in tuner.prediction.throughput.
"""

import math
from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.tuner.prediction.adapters.layers import AdaptedLayers, SavedInputs

Norm = Literal["rms", "layer", "rms_fused"]
Mlp = Literal["gated", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class ModelShape:
    """Shape of a decoder-only transformer. Counts are numbers of elements, never bytes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of one MLP's hidden layer (of one expert's where there are experts)."""
    vocab: int
    mlp: Mlp = "gated"
    norm: Norm = "rms"
    """Kind of norm. `rms` is composed of elementwise kernels in fp32 (transformers' LlamaRMSNorm); `rms_fused` and
    `layer` are one kernel each."""
    tied: bool = False
    experts: int = 1
    experts_per_token: int = 1
    biases: bool = False
    """Whether every linear layer and norm has a bias (GPT-2, GPT-NeoX)."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    learned_positions: int = 0
    max_positions: int | None = None
    context_note: str | None = None
    """Reason why ranks cannot share a sequence (context parallel) with this model; None where they can."""
    tensor_note: str | None = None
    """Reason why ranks cannot split a block (tensor parallel) of this model; None where they can."""
    pipeline_note: str | None = None
    """Reason why the model cannot be cut into pipeline stages; None where it can."""
    adapter: AdaptedLayers | None = None
    """Part of the blocks that is trained while the rest is frozen. If None, all parameters are trained."""

    @property
    def step_trace(self) -> StepTrace | None:
        """Trace of a training step of the user's own code, which replaces the formulas for activations and work; None
        for models of transformers."""
        return None

    @property
    def knows_products(self) -> bool:
        """Whether the widths and the order of a block's matrix products are known."""
        return True

    @property
    def attends_eagerly(self) -> bool:
        """Whether a worker built the model with eager attention, because its architecture has no fused one."""
        return False

    @property
    def trained_outside(self) -> float:
        """Fraction of the parameters outside the blocks that are trained; 0 with an adapter, as adapters are in blocks."""
        return 1.0 if self.adapter is None else 0.0

    @property
    def part_widths(self) -> dict[str, tuple[int, int]]:
        """Input and output width of the linear layers of a block, by part (see `api_schemas.training.adapter_targets`)."""
        hidden, up = self.hidden, (self.hidden, self.ffn)
        outputs = {"q": self.query, "k": self.kv, "v": self.kv, "qkv": self.query + 2 * self.kv}
        widths = {part: (hidden, width) for part, width in outputs.items()}
        return widths | {"o": (self.query, hidden), "gate": up, "up": up, "down": (self.ffn, hidden)}

    @property
    def added_parameters(self) -> int:
        """Number of elements that an adapter adds to one block."""
        return 0 if self.adapter is None else self.adapter.added

    @property
    def packed_parameters(self) -> int:
        """Number of elements of one block that are kept in 4 bits, as frozen weights beside an adapter."""
        return 0 if self.adapter is None else self.adapter.packed_weights

    @property
    def trained_blocks(self) -> int:
        """Number of blocks that backward passes: all from the first trained one on."""
        return self.layers if self.adapter is None else self.adapter.trained_blocks(self.layers)

    @property
    def trained_block_parameters(self) -> int:
        """Number of elements that are trained in a block that backward passes."""
        return self.added_parameters or self.block_parameters

    @property
    def trained_parameters(self) -> int:
        """Number of elements that are trained."""
        return self.parameters if self.adapter is None else self.trained_blocks * self.trained_block_parameters

    @property
    def saved(self) -> SavedInputs:
        """Flags that say which layers of a block save their input for the gradients of their weights."""
        return SavedInputs() if self.adapter is None else self.adapter.saved

    @property
    def query(self) -> int:
        """Width (elements per token) of all query heads together; Qwen3's is larger than `hidden`."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width (elements per token) of all key heads together; all value heads together have the same width."""
        return self.kv_heads * self.head_dim

    @property
    def context(self) -> tuple[int | None, str | None]:
        """Values of `context_heads` and `context_note` in a model summary, which say over how many ranks a sequence may
        be divided (context parallel)."""
        return (1 if self.context_note else math.gcd(self.heads, self.kv_heads)), self.context_note

    @property
    def tensor(self) -> tuple[int | None, str | None]:
        """Values of `tensor_divisor` and `tensor_note` in a model summary, which say over how many ranks a block may be
        split (tensor parallel)."""
        return (1 if self.tensor_note else math.gcd(self.heads, self.kv_heads, self.ffn)), self.tensor_note

    @property
    def pipeline(self) -> tuple[int | None, str | None]:
        """Values of `pipeline_blocks` and `pipeline_note` in a model summary, which say how many blocks pipeline stages
        can divide among them."""
        return (1 if self.pipeline_note else self.layers), self.pipeline_note

    @property
    def divisible_experts(self) -> tuple[int | None, int | None, str | None]:
        """Values of `experts`, `expert_width` and `expert_note` in a model summary, which say over how many ranks
        experts may be divided."""
        return self.experts, math.gcd(2 * self.ffn, self.hidden), None if self.experts > 1 else "it has no experts"

    @property
    def expert_parameters(self) -> int:
        """Number of elements of one block's experts."""
        return self.experts * self.mlp_matrix_parameters if self.experts > 1 else 0

    @property
    def attention_matrix_parameters(self) -> int:
        """Number of elements of one block's q, k, v and output projections."""
        return self.hidden * (2 * self.query + 2 * self.kv)

    @property
    def mlp_matrix_parameters(self) -> int:
        """Number of elements of the matrices of one MLP or one expert."""
        return (3 if self.mlp == "gated" else 2) * self.hidden * self.ffn

    @property
    def block_matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of each matrix of one block, as transformers 5 defines them; experts stacked into one tensor
        do not count as matrices."""
        hidden, ffn = self.hidden, self.ffn
        # Models with LayerNorm (GPT-2, GPT-NeoX, MPT) have one projection for q, k and v.
        outputs = [self.query + 2 * self.kv] if self.norm == "layer" else [self.query, self.kv, self.kv]
        matrices = [*((width, hidden) for width in outputs), (hidden, self.query)]
        if self.experts > 1:
            return (*matrices, (self.experts, hidden))
        return (*matrices, *[(ffn, hidden)] * (2 if self.mlp == "gated" else 1), (hidden, ffn))

    @property
    def matrix_parameters(self) -> int:
        """Number of elements of all matrices in blocks."""
        return self.layers * sum(rows * columns for rows, columns in self.block_matrices)

    @property
    def block_parameters(self) -> int:
        """Number of elements of one decoder block."""
        total = self.attention_matrix_parameters + self.experts * self.mlp_matrix_parameters
        total += self._norm_parameters * 2
        if self.experts > 1:
            total += self.experts * self.hidden
        total += (self.query + 2 * self.kv) * (self.biases or self.qkv_bias) + self.hidden * (
            self.biases or self.o_bias
        )
        total += (self.ffn * (2 if self.mlp == "gated" else 1) + self.hidden) * (self.biases or self.mlp_bias)
        if self.qk_norm:
            total += 2 * self.head_dim
        return total + self.added_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.norm == "layer" and self.biases else 1)

    @property
    def embedding_parameters(self) -> int:
        """Number of elements of the token table, which a tied output head shares."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """Number of elements of the output head, also where it is the token table."""
        return self.embedding_parameters

    @property
    def outside_parameters(self) -> int:
        """Number of elements outside the blocks: token and position tables, final norm, output head."""
        tables = self.embedding_parameters * (1 if self.tied else 2)
        return tables + self.learned_positions * self.hidden + self._norm_parameters

    @property
    def parameters(self) -> int:
        """Number of elements of all distinct parameters; tied weights count once."""
        return self.layers * self.block_parameters + self.outside_parameters

    @property
    def largest_parameter(self) -> int:
        """Number of elements of the largest single parameter."""
        mlp = self.hidden * self.ffn
        if self.experts > 1:
            # transformers 5 keeps the experts of a layer in one tensor, gate beside up.
            mlp *= 2 * self.experts
        return max(mlp, self.embedding_parameters, self.hidden * self.query)

    @property
    def active_parameters(self) -> int:
        """Number of parameter elements that take part in one token's forward pass."""
        idle = (self.experts - self.experts_per_token) * self.mlp_matrix_parameters
        return self.parameters - self.layers * idle

    @property
    def block_matmul_flops_per_token(self) -> float:
        """Forward FLOPs per token of one block's matrix products with weights; a multiply-add counts as two."""
        router = self.experts * self.hidden if self.experts > 1 else 0
        return 2.0 * (self.attention_matrix_parameters + self.experts_per_token * self.mlp_matrix_parameters + router)

    def attention_flops_per_token(self, sequence: float) -> float:
        """Forward FLOPs per token of one block's attention scores and weighted sum, counted in full (a causal kernel
        skips half)."""
        return 4.0 * sequence * self.query

    def model_flops_per_token(self, sequence: float) -> float:
        """Training FLOPs of one token (forward, plus twice as much in backward), with attention counted in full and
        without recomputation.

        The formula is that of PaLM (arXiv:2204.02311), appendix B. No gradients are counted for frozen weights.
        """
        matmul, attention = self.block_matmul_flops_per_token, self.attention_flops_per_token(sequence)
        head = 2.0 * self.embedding_parameters
        if self.adapter is None:
            return 3.0 * (self.layers * (matmul + attention) + head)
        added, passed = 2.0 * self.added_parameters, self.trained_blocks
        of_inputs = passed * (matmul + 2.0 * attention + added)
        of_weights = passed * (added or matmul)
        return self.layers * (matmul + attention + added) + of_inputs + of_weights + 2.0 * head

"""Model shape: dimensions read from a `config.json`, with the numbers of parameters and FLOPs computed by formula.

Covers the decoder families below exactly (tested against `transformers` on the meta device). Any other architecture
needs a worker's trace. Activations are in tuner.prediction.footprint, times in tuner.prediction.throughput.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.tuner.prediction.adapters.layers import AdaptedLayers, SavedInputs
from shardtune.tuner.prediction.config_keys import WatchedConfig, similar_key

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
    """Kind of norm. `rms`: composed of elementwise kernels in fp32 (transformers' LlamaRMSNorm); `rms_fused` and
    `layer`: one kernel."""
    tied: bool = False
    experts: int = 1
    experts_per_token: int = 1
    biases: bool = False
    """Whether every linear layer and norm has a bias (GPT-2, GPT-NeoX)."""
    qkv_bias: bool = False
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
    """Part of the blocks that is trained while the rest is frozen; None: all parameters are trained."""

    @property
    def step_trace(self) -> StepTrace | None:
        """Trace of a training step, which replaces the formulas of activations and work; None for models of
        transformers."""
        return None

    @property
    def trained_outside(self) -> float:
        """Fraction of the parameters in no block that are trained: adapters are in blocks."""
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
        """Number of elements of one block that are kept in 4 bits beside an adapter."""
        return 0 if self.adapter is None else self.adapter.packed_weights

    @property
    def trained_blocks(self) -> int:
        """Number of blocks that backward passes."""
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
        """Inputs that the layers of a block keep for the gradients of their weights."""
        return SavedInputs() if self.adapter is None else self.adapter.saved

    @property
    def query(self) -> int:
        """Width (elements per token) of all query heads together; Qwen3's is larger than `hidden`."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width (elements per token) of all key heads together, which equals that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def context(self) -> tuple[int | None, str | None]:
        """Values `context_heads` and `context_note` of a model summary: which numbers of ranks may share a sequence."""
        return (1 if self.context_note else math.gcd(self.heads, self.kv_heads)), self.context_note

    @property
    def tensor(self) -> tuple[int | None, str | None]:
        """Values `tensor_divisor` and `tensor_note` of a model summary: which numbers of ranks may split a block."""
        return (1 if self.tensor_note else math.gcd(self.heads, self.kv_heads, self.ffn)), self.tensor_note

    @property
    def pipeline(self) -> tuple[int | None, str | None]:
        """Values `pipeline_blocks` and `pipeline_note` of a model summary: how many blocks stages can divide."""
        return (1 if self.pipeline_note else self.layers), self.pipeline_note

    @property
    def divisible_experts(self) -> tuple[int | None, int | None, str | None]:
        """Values `experts`, `expert_width` and `expert_note` of a model summary: which numbers of ranks may divide
        experts."""
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
        """Rows and columns of each matrix of one block, as transformers 5 defines them: stacked experts are no matrices."""
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
        if self.biases:
            total += self.query + 2 * self.kv + self.hidden + self.ffn + self.hidden
        elif self.qkv_bias:
            total += self.query + 2 * self.kv
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
    def outside_parameters(self) -> int:
        """Number of elements in no block: token and position tables, final norm, output head."""
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

        PaLM (arXiv:2204.02311), appendix B. Frozen weights have no gradients.
        """
        matmul, attention = self.block_matmul_flops_per_token, self.attention_flops_per_token(sequence)
        head = 2.0 * self.embedding_parameters
        if self.adapter is None:
            return 3.0 * (self.layers * (matmul + attention) + head)
        added, passed = 2.0 * self.added_parameters, self.trained_blocks
        of_inputs = passed * (matmul + 2.0 * attention + added)
        of_weights = passed * (added or matmul)
        return self.layers * (matmul + attention + added) + of_inputs + of_weights + 2.0 * head


_NO_PLAN = "transformers has no plan of tensor parallelism for its architecture"
_SPLIT_EXPERTS = "its experts are split as no style of torch does"
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
FAMILIES: tuple[str, ...] = (*_LLAMA_LIKE, "gpt2", "gpt_neox", "mpt")
"""Model families (`model_type` values) whose parameters and FLOPs are computed by formula from the config.json."""


class NoClosedForm(ValueError):
    """Error raised for an architecture whose parameters can be counted only by building the model."""


def from_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """Read a model's shape from a Hugging Face `config.json`.

    Raises:
        NoClosedForm: unknown family.
        ValueError: a missing field; names it and what to add.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise NoClosedForm(
            f"model_type ({kind!r}) has no closed form (only {', '.join(FAMILIES)} have), so it has to be built to be counted: "
            "`shardtune predict CONFIG --trace` does where torch is installed, and a study's worker does by itself; "
            "`model_summary` in a request takes what either counted"
        )
    return _read_shape(WatchedConfig(config), name)


def unknown_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Messages about keys of a config.json that look like a misspelt dimension, for architectures computed by
    formula."""
    watched = WatchedConfig(config)
    if config.get("model_type") not in FAMILIES:
        return ()
    try:
        _read_shape(watched, "")
    except ValueError:
        # `from_config` reports the error.
        return ()
    return watched.unknown_keys()


def _read_shape(config: WatchedConfig, name: str) -> ModelShape:
    kind = str(config["model_type"])
    read = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "mpt": _mpt}.get(kind, _llama_like)
    shape = read(config, name or kind)
    config.check_names()
    if shape.heads % shape.kv_heads:
        raise ValueError(
            f"num_key_value_heads ({shape.kv_heads}) must divide num_attention_heads ({shape.heads}); "
            "use a divisor of the number of heads"
        )
    return shape


def shape_if_known(config: Mapping[str, Any]) -> ModelShape | None:
    """Model's shape where its config.json alone determines it; None where a worker has to trace the model."""
    try:
        return from_config(config)
    except ValueError:
        return None


def to_text(config: Mapping[str, Any]) -> str:
    """Text of a model configuration, used as the key of caches."""
    return json.dumps(config, sort_keys=True)


def from_text(config: str) -> dict[str, Any]:
    """Model configuration parsed from the text that `to_text` returns."""
    return dict(json.loads(config))


def _positive_int(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        similar = similar_key(field, config)
        remedy = "add it, as in the model's config.json"
        if similar is not None:
            remedy = f"it has {similar}: did you mean {field}?"
        raise ValueError(f"{field} is missing from the model's config; {remedy}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} ({value!r}) must be a whole number of at least 1; correct the model's config")
    return value


def _optional_int(config: Mapping[str, Any], field: str) -> int | None:
    return None if config.get(field) is None else _positive_int(config, field)


def _llama_like(config: Mapping[str, Any], name: str) -> ModelShape:
    kind = config["model_type"]
    hidden, heads = _positive_int(config, "hidden_size"), _positive_int(config, "num_attention_heads")
    moe = kind in ("mixtral", "qwen3_moe")
    experts = _positive_int(config, "num_local_experts" if kind == "mixtral" else "num_experts") if moe else 1
    # transformers' Qwen3 configurations default head_dim to 128 whatever the width.
    default_head = 128 if kind in ("qwen3", "qwen3_moe") else hidden // heads
    return ModelShape(
        name=name,
        layers=_positive_int(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_positive_int(config, "num_key_value_heads", heads),
        head_dim=_positive_int(config, "head_dim", default_head),
        ffn=_positive_int(config, "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"),
        vocab=_positive_int(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        experts_per_token=_positive_int(config, "num_experts_per_tok", 2) if moe else 1,
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        tensor_note=_SPLIT_EXPERTS if moe else None,
        max_positions=_optional_int(config, "max_position_embeddings"),
    )


def _multi_head(config: Mapping[str, Any], hidden: str, heads: str) -> dict[str, Any]:
    """Fields of the model shape that GPT-like families share: as many key heads as query heads, and LayerNorm."""
    width, count = _positive_int(config, hidden), _positive_int(config, heads)
    if count > width:
        raise ValueError(f"{hidden} ({width}) must not be below {heads} ({count}); correct the model's config")
    return {"hidden": width, "heads": count, "kv_heads": count, "head_dim": width // count, "norm": "layer"}


def _gpt2(config: Mapping[str, Any], name: str) -> ModelShape:
    positions = _positive_int(config, "n_positions", 1024)
    activation = config.get("activation_function", "gelu_new")
    return ModelShape(
        name=name,
        layers=_positive_int(config, "n_layer"),
        **_multi_head(config, "n_embd", "n_head"),
        ffn=_positive_int(config, "n_inner", 4 * _positive_int(config, "n_embd")),
        vocab=_positive_int(config, "vocab_size"),
        mlp="gelu_tanh" if activation == "gelu_new" else "gelu",
        tied=bool(config.get("tie_word_embeddings", True)),
        biases=True,
        tensor_note=_NO_PLAN,
        learned_positions=positions,
        max_positions=positions,
    )


def _gpt_neox(config: Mapping[str, Any], name: str) -> ModelShape:
    return ModelShape(
        name=name,
        layers=_positive_int(config, "num_hidden_layers"),
        **_multi_head(config, "hidden_size", "num_attention_heads"),
        ffn=_positive_int(config, "intermediate_size"),
        vocab=_positive_int(config, "vocab_size"),
        mlp="gelu",
        tied=bool(config.get("tie_word_embeddings", False)),
        biases=True,
        max_positions=_optional_int(config, "max_position_embeddings"),
    )


def _mpt(config: Mapping[str, Any], name: str) -> ModelShape:
    return ModelShape(
        name=name,
        layers=_positive_int(config, "n_layers"),
        **_multi_head(config, "d_model", "n_heads"),
        ffn=_positive_int(config, "expansion_ratio", 4) * _positive_int(config, "d_model"),
        vocab=_positive_int(config, "vocab_size"),
        mlp="gelu",
        tied=True,
        max_positions=_optional_int(config, "max_seq_len"),
        tensor_note=_NO_PLAN,
        pipeline_note="its blocks return more than hidden states",
        context_note="it has attention of its own, which transformers cannot replace",
    )

"""Steps of own code: ten kinds of training that people bring, and two that no trace can follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn

from benchmarks.own_code import plain_models as plain
from shardtune.workers.rank.model import build

_SIZES: dict[str, Any] = {
    "hidden_size": plain.WIDTH, "intermediate_size": 4 * plain.WIDTH, "num_hidden_layers": plain.LAYERS,
    "num_attention_heads": plain.HEADS,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class OwnScript:
    """Training step of one script: a model, batches and a loss, as an entry point has them."""

    name: str
    make_model: Callable[[], nn.Module]
    batch_of: Callable[[range, int], Any]
    loss_of: Callable[[nn.Module, Any], torch.Tensor]
    length: int = 128
    is_plain: bool = True
    """Whether the model is plain torch rather than one of transformers."""
    expected_failure: str | None = None
    """Code of the reason for which no trace can follow the step."""

    def build_model(self) -> nn.Module:
        """Build the model with parameters on the meta device, as a trial does."""
        with build.without_values():
            return self.make_model().train()

    def make_batch(self, _step: int, samples: Sequence[int], _device: torch.device) -> Any:
        """Make a micro batch of samples."""
        assert isinstance(samples, range)
        return self.batch_of(samples, self.length)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Loss of a micro batch."""
        return self.loss_of(model, batch)


def _lora() -> nn.Module:
    sizes = {**_SIZES, "num_key_value_heads": 2}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=plain.VOCAB, use_cache=False, **sizes))
    model: nn.Module = get_peft_model(llama, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    return model


def _vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=64, patch_size=8, num_labels=10, **_SIZES, **_NO_DROPOUT)
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def _bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=plain.VOCAB, **_SIZES, **_NO_DROPOUT)
    model: nn.Module = transformers.BertForMaskedLM(config)
    return model


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=plain.VOCAB, d_model=plain.WIDTH, d_kv=32, d_ff=4 * plain.WIDTH, num_layers=2, num_heads=plain.HEADS,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model: nn.Module = transformers.T5ForConditionalGeneration(config)
    return model


def _tokens(samples: range, length: int) -> dict[str, torch.Tensor]:
    ids = plain.tokens(samples, length)
    return {"input_ids": ids, "labels": ids}


def _masked(samples: range, length: int) -> dict[str, torch.Tensor]:
    return {**_tokens(samples, length), "attention_mask": torch.ones(len(samples), length, dtype=torch.int64)}


def _images(samples: range, _length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples.start)
    images = torch.randn((len(samples), 3, 64, 64), generator=generator)
    return {"pixel_values": images, "labels": torch.zeros(len(samples), dtype=torch.int64)}


def _output_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def _experts(kind: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: plain.NanoGpt([plain.Block(kind()) for _ in range(plain.LAYERS)])


SCRIPTS = (
    OwnScript("lora", _lora, _tokens, _output_loss, is_plain=False),
    OwnScript("vit", _vit, _images, _output_loss, is_plain=False),
    OwnScript("unet", plain.UNet, plain.noise_batch, plain.diffusion_loss),
    OwnScript("bert", _bert, _masked, _output_loss, is_plain=False),
    OwnScript("t5", _t5, _tokens, _output_loss, is_plain=False),
    OwnScript("custom-loss", plain.Contrastive, plain.tokens, plain.contrastive_loss),
    OwnScript("nanogpt", plain.NanoGpt, plain.tokens, plain.language_loss),
    OwnScript("soft-experts", _experts(plain.SoftExperts), plain.tokens, plain.language_loss),
    OwnScript("control-flow", plain.EarlyExit, plain.tokens, plain.language_loss),
    OwnScript("numpy", plain.NumpyGate, plain.tokens, plain.language_loss, expected_failure="custom_operator"),
    OwnScript(
        "routed-experts", _experts(plain.RoutedExperts), plain.tokens, plain.language_loss,
        expected_failure="data_dependent",
    ),
)  # fmt: skip

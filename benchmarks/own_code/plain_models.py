"""Models of a few lines of plain torch: nanoGPT, a UNet, mixtures of experts, a loss of its own, control flow."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VOCAB, WIDTH, HEADS, LAYERS = 512, 128, 4, 4


class Block(nn.Module):
    """Transformer block with causal attention."""

    def __init__(self, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = mlp or nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states behind the block."""
        samples, tokens, width = x.shape
        parts = self.qkv(self.first_norm(x)).view(samples, tokens, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(samples, tokens, width))
        output: torch.Tensor = x + self.mlp(self.second_norm(x))
        return output


class NanoGpt(nn.Module):
    """Decoder with learned positions."""

    def __init__(self, blocks: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.ModuleList(blocks or [Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states behind the last norm."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.head(self.hidden(ids))
        return logits


class Contrastive(NanoGpt):
    """Encoder whose loss compares two halves of a batch."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Unit vectors, one for each sample."""
        return functional.normalize(self.hidden(ids).mean(1), dim=-1)


class SoftExperts(nn.Module):
    """Mixture of experts that weighs the outputs of all its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the experts."""
        weights = self.gate(x).softmax(-1)
        return torch.stack([expert(x) * weights[..., [i]] for i, expert in enumerate(self.experts)]).sum(0)


class RoutedExperts(SoftExperts):
    """Mixture of experts that sends each token to one expert: the routing depends on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of each token's expert."""
        rows, weights = x.flatten(0, 1), self.gate(x).softmax(-1).flatten(0, 1)
        chosen, total = weights.argmax(-1), torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero()[:, 0]
            total = total.index_add(0, places, expert(rows[places]) * weights[places, number, None])
        return total.view_as(x)


class EarlyExit(NanoGpt):
    """Decoder with Python control flow over the batch: long and short sequences take different ways."""

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states; blocks of odd number run only where the batch has a token above a limit."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for number, block in enumerate(self.blocks):
            if number % 2 == 0 or int(ids.max()) > VOCAB // 2:
                x = block(x)
        hidden: torch.Tensor = self.norm(x)
        return hidden


class NumpyGate(NanoGpt):
    """Decoder that leaves torch in its forward, as code around kernels of its own does."""

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states, scaled by a number that numpy computes."""
        hidden = super().hidden(ids)
        scale = float(np.abs(hidden.detach().numpy()).mean())
        return hidden / (scale + 1.0)


class _Residual(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, into), nn.Conv2d(into, out, 3, padding=1)
        self.time, self.skip = nn.Linear(64, out), nn.Conv2d(into, out, 1)
        self.last = nn.Conv2d(out, out, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.conv(functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        output: torch.Tensor = self.last(functional.silu(hidden)) + self.skip(x)
        return output


class UNet(nn.Module):
    """Diffusion model of two levels, without a list of equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.time = nn.Conv2d(3, 32, 3, padding=1), nn.Sequential(nn.Linear(1, 64), nn.SiLU())
        self.down, self.middle, self.up = _Residual(32, 64), _Residual(64, 64), _Residual(128, 32)
        self.last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Predicted noise."""
        first, embedded = self.first(image), self.time(time[:, None])
        down = self.down(first, embedded)
        middle = self.middle(functional.avg_pool2d(down, 2), embedded)
        up = self.up(torch.cat([functional.interpolate(middle, scale_factor=2.0), down], 1), embedded)
        noise: torch.Tensor = self.last(torch.cat([up, first], 1))
        return noise


def tokens(samples: range, length: int) -> torch.Tensor:
    """Token ids of samples, int64 [samples, length]."""
    return torch.stack(
        [torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(sample)) for sample in samples]
    )


def language_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Next-token cross entropy."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def contrastive_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the similarities of two views of each sample."""
    first, second = model(batch), model(batch.flip(1))
    similarities = first @ second.T / 0.07
    return functional.cross_entropy(similarities, torch.arange(len(batch), device=batch.device))


def noise_batch(samples: range, _length: int) -> dict[str, Any]:
    """Images, noise and times of samples."""
    generator = torch.Generator().manual_seed(samples.start)
    shape = (len(samples), 3, 32, 32)
    return {
        "image": torch.randn(shape, generator=generator),
        "noise": torch.randn(shape, generator=generator),
        "time": torch.rand(len(samples), generator=generator),
    }


def diffusion_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Mean square error of the predicted noise."""
    return functional.mse_loss(model(batch["image"] + batch["noise"], batch["time"]), batch["noise"])

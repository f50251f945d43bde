"""Published figures of GPUs, which no query returns, by the GPU's name in NVML. The figures are in
api_schemas.machines.gpus.

A GPU model is left out where sources disagree (A10G), the table lacks it, or the chip has no bf16 tensor cores (V100,
T4): a wrong figure would make a true measurement look impossible, or a false one possible.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from shardtune.api_schemas.machines.gpus import GB, models


class Figures(NamedTuple):
    """Published figures of one GPU model."""

    peak_bf16_flops: float | None
    """Dense bf16 peak of the GPU in FLOP/s; None if unknown."""
    nvlink_gb_per_s: float | None
    """Bandwidth of the GPU's link to other GPUs (NVLink), in GB/s per GPU and direction; None if the link is not the
    same on every GPU of this model."""


class _Card(NamedTuple):
    pattern: str
    """Regular expression that is searched in the GPU's name as NVML prints it."""
    model: str | None
    """Name of the GPU in the table of published figures; None if no published figure is reliable."""
    has_fixed_link: bool = False


_CARDS = (
    # The first matching pattern wins, so narrower names come first.
    _Card(r"\bGB[23]00\b", "GB200-186GB", has_fixed_link=True),
    _Card(r"\bB[23]00\b", "B200-SXM-180GB", has_fixed_link=True),
    _Card(r"\bGH200\b", "GH200-96GB", has_fixed_link=True),
    _Card(r"\bH200 NVL\b", None),
    _Card(r"\bH200\b", "H200-SXM-141GB", has_fixed_link=True),
    _Card(r"\bH100 PCIe\b", "H100-PCIe-80GB"),
    _Card(r"\bH100 NVL\b", "H100-NVL-94GB"),
    _Card(r"\bH100.*HBM2e\b", None),
    _Card(r"\bH100\b", "H100-SXM5-80GB", has_fixed_link=True),
    _Card(r"\bH800\b.*PCIe\b", None),
    _Card(r"\bH800\b", "H800-SXM5-80GB", has_fixed_link=True),
    _Card(r"\bH20\b", "H20-96GB"),
    _Card(r"\bA100-SXM", "A100-SXM4-80GB", has_fixed_link=True),
    _Card(r"\bA[18]00\b", "A100-PCIe-80GB"),
    _Card(r"\bRTX A6000\b", "A6000-48GB"),
    _Card(r"\bL40S\b", "L40S-48GB"),
    _Card(r"\bL4\b", "L4-24GB"),
    _Card(r"\bA10\b", "A10-24GB"),
)

_OTHERS: Mapping[str, str | None] = {
    "A100-PCIe-40GB": "A100-PCIe-80GB",
    "A100-SXM4-40GB": "A100-SXM4-80GB",
    "A800-SXM4-80GB": "A100-PCIe-80GB",
    "B300-SXM-288GB": "B200-SXM-180GB",
    "GB300-288GB": "GB200-186GB",
    "GH200-141GB": "GH200-96GB",
    "H100-SXM-96GB-HBM2e-500W": None,
    "A10G-24GB": None,
    "T4-16GB": None,
    "RTX-4090-24GB": None,
    **dict.fromkeys(("V100-PCIe-16GB", "V100-PCIe-32GB", "V100-SXM2-16GB", "V100-SXM2-32GB")),
    # NVML names no GPU of AMD.
    **dict.fromkeys(("MI210-64GB", "MI250-128GB", "MI250X-128GB", "MI300X-192GB")),
    **dict.fromkeys(("MI325X-256GB", "MI350X-288GB", "MI355X-288GB")),
}
"""GPUs of the table of published figures for which no pattern is listed. Each is mapped to the model under which its
NVML name is found instead; None if its speed is not checked."""
MODELS = frozenset({card.model for card in _CARDS if card.model is not None} | _OTHERS.keys())
"""Names of all GPUs in the table of published figures for which this module decides what is used for them."""


def figures(gpu: str) -> Figures:
    """Published figures of a GPU model by its NVML name; all None for an unknown name."""
    card = next((candidate for candidate in _CARDS if re.search(candidate.pattern, gpu)), None)
    if card is None or card.model is None:
        return Figures(None, None)
    model = models()[card.model]
    link = model.link_bytes_per_s if card.has_fixed_link else None
    return Figures(model.peak_flops, link / GB if link is not None else None)

"""Published figures of GPU models by the name NVML prints: what no query tells.

Dense bf16 peaks: NVIDIA's datasheets as listed by pytorch/torchtitan `tools/utils.py`, stas00/ml-engineering
`compute/accelerator/README.md` and cli99/llm-analysis. Left out where sources disagree (A10G) or the chip has no
bf16 tensor cores (V100, T4). NVLink per GPU and direction: stas00/ml-engineering; only of boards where it is fixed.
"""

import re
from typing import NamedTuple


class Figures(NamedTuple):
    """Of one GPU model."""

    peak_bf16_flops: float | None
    nvlink_gb_per_s: float | None


_UNKNOWN = Figures(None, None)

# The first pattern found in the name wins: narrower names stand first.
_FIGURES: tuple[tuple[str, Figures], ...] = (
    (r"\bGB[23]00\b", Figures(2500e12, 900)),
    (r"\bB[23]00\b", Figures(2250e12, 900)),
    (r"\bGH200\b", Figures(989e12, 450)),
    (r"\bH200 NVL\b", _UNKNOWN),
    (r"\bH200\b", Figures(989e12, 450)),
    (r"\bH100 PCIe\b", Figures(756e12, None)),
    (r"\bH100 NVL\b", Figures(835e12, None)),
    (r"\bH100.*HBM2e\b", _UNKNOWN),
    (r"\bH100\b", Figures(989e12, 450)),
    (r"\bH800\b.*PCIe\b", _UNKNOWN),
    (r"\bH800\b", Figures(989e12, 200)),
    (r"\bH20\b", Figures(148e12, None)),
    (r"\bA100-SXM", Figures(312e12, 300)),
    (r"\bA[18]00\b", Figures(312e12, None)),
    (r"\bRTX A6000\b", Figures(154.85e12, None)),
    (r"\bL40S\b", Figures(362e12, None)),
    (r"\bL4\b", Figures(121e12, None)),
    (r"\bA10\b", Figures(125e12, None)),
)


def figures(gpu: str) -> Figures:
    """What is known of a GPU model; nothing for unknown names."""
    return next((found for pattern, found in _FIGURES if re.search(pattern, gpu)), _UNKNOWN)

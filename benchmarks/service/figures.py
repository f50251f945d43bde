"""Summaries of figures, and the machine they come from."""

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered) * 1000, 2),
        "p99": round(p99 * 1000, 2),
        "max": round(ordered[-1] * 1000, 2),
    }


def machine() -> dict[str, Any]:
    """Processor, Python and kernel."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpus": os.cpu_count(),
        "cpu": names[0].split(": ", 1)[1] if names else "unknown",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }

"""Availability of Optuna's Gaussian process, checked without importing optuna."""

import importlib.util

GP_PACKAGES = ("scipy", "torch")
"""Python packages that Optuna's Gaussian process needs and the service does not install."""


def gp_is_installed() -> bool:
    """Whether the Python packages that Optuna's Gaussian process needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in GP_PACKAGES)

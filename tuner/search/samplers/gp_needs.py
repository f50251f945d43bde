"""Availability of Optuna's Gaussian process, checked without importing optuna."""

import importlib.util

GP_PACKAGES = ("scipy", "torch")
"""Packages of the Gaussian process that the service does not install."""


def gp_is_installed() -> bool:
    """Whether the packages of the Gaussian process are installed."""
    return all(importlib.util.find_spec(name) is not None for name in GP_PACKAGES)

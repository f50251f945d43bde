"""Whether Optuna's Gaussian process can be used here; asked where optuna itself is not wanted yet."""

import importlib.util

GP_NEEDS = ("scipy", "torch")
"""Packages of it that the service does not bring."""


def gp_is_installed() -> bool:
    """Whether they are here."""
    return all(importlib.util.find_spec(name) is not None for name in GP_NEEDS)

"""Installed package. Public modules: `shardtune.adapter` for training scripts, `shardtune.client` for the API.

The parts lie side by side at the top of the repository; the links here give them one name, so that a training
repository with a folder named `db` or `workers` hides nothing of ours (docs/decisions/0007-one-package.md).
"""

__version__ = "0.1.0"
"""Version of this package: the only place that states it. `pyproject.toml` reads it from here."""

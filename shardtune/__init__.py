"""Python API (`import shardtune as st`): `predict`, `memory`, `explain_config`, `plan`, `best` and `Study`. Further public
modules: `shardtune.adapter` for training scripts, `shardtune.client` for the REST API.

Its attributes are imported on first use: the command line, workers and training scripts import this module, too.

The parts lie side by side at the top of the repository; the links here give them one name, so that a training
repository with a folder named `db` or `workers` hides nothing of ours (docs/decisions/0007-one-package.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardtune.service.cli.errors import CliError as ShardtuneError
    from shardtune.service.cli.errors import InputError, PlatformFailure
    from shardtune.service.client import ServiceClient
    from shardtune.service.python_api.plans import TrainingPlan, plan
    from shardtune.service.python_api.predictions import (
        ExplainedConfig,
        Predictions,
        explain_config,
        memory,
        predict,
    )
    from shardtune.service.python_api.recommendations import KnownBest, best
    from shardtune.service.python_api.study import StudyAnswer, StudyStatus, StudyTrials
    from shardtune.service.python_api.study import StudyHandle as Study
    from shardtune.service.trackers.mlflow_callback import MlflowCallback
    from shardtune.service.trackers.optional_packages import MissingPackage
    from shardtune.service.trackers.wandb_callback import WandbCallback

__version__ = "0.1.0"
"""Version of this package: the only place that states it. `pyproject.toml` reads it from here."""

_API = "shardtune.service.python_api"
_ATTRIBUTES = {
    "predict": (f"{_API}.predictions", "predict"),
    "memory": (f"{_API}.predictions", "memory"),
    "explain_config": (f"{_API}.predictions", "explain_config"),
    "plan": (f"{_API}.plans", "plan"),
    "best": (f"{_API}.recommendations", "best"),
    "Study": (f"{_API}.study", "StudyHandle"),
    "Predictions": (f"{_API}.predictions", "Predictions"),
    "ExplainedConfig": (f"{_API}.predictions", "ExplainedConfig"),
    "TrainingPlan": (f"{_API}.plans", "TrainingPlan"),
    "KnownBest": (f"{_API}.recommendations", "KnownBest"),
    "StudyStatus": (f"{_API}.study", "StudyStatus"),
    "StudyTrials": (f"{_API}.study", "StudyTrials"),
    "StudyAnswer": (f"{_API}.study", "StudyAnswer"),
    "MlflowCallback": ("shardtune.service.trackers.mlflow_callback", "MlflowCallback"),
    "WandbCallback": ("shardtune.service.trackers.wandb_callback", "WandbCallback"),
    "ServiceClient": ("shardtune.service.client", "ServiceClient"),
    "ShardtuneError": ("shardtune.service.cli.errors", "CliError"),
    "InputError": ("shardtune.service.cli.errors", "InputError"),
    "PlatformFailure": ("shardtune.service.cli.errors", "PlatformFailure"),
    "MissingPackage": ("shardtune.service.trackers.optional_packages", "MissingPackage"),
}
"""Module from which each public attribute of the package is imported, and its name there."""

__all__ = [
    "ExplainedConfig",
    "InputError",
    "KnownBest",
    "MissingPackage",
    "MlflowCallback",
    "PlatformFailure",
    "Predictions",
    "ServiceClient",
    "ShardtuneError",
    "Study",
    "StudyAnswer",
    "StudyStatus",
    "StudyTrials",
    "TrainingPlan",
    "WandbCallback",
    "__version__",
    "best",
    "explain_config",
    "memory",
    "plan",
    "predict",
]


def __getattr__(name: str) -> Any:
    """Import a public attribute of the package when it is first used."""
    if name not in _ATTRIBUTES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _ATTRIBUTES[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ATTRIBUTES})

"""Imports that the fork server makes for its ranks: a rank need not repeat them in each trial."""

import importlib
import sys
import traceback

import transformers

from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.trials.leases import Task
from shardtune.workers.rank.fork_server import forking
from shardtune.workers.rank.rank_context import device_kind

LATE_IMPORTS = (
    "cpuinfo",
    "deepspeed.module_inject.auto_ep_comm",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "functorch.compile",
    "torch.profiler._cupti_monitor",
)
"""Modules that the fork server imports so that ranks need not import them in each trial, which would take 0.6 s in all.
Names that the installed version of a library lacks are skipped."""

_left_to_ranks = set[str]()
"""Names of modules that the fork server does not import, because it could fork no rank afterwards."""


def preload(task: Task) -> None:
    """Import the module of the model's architecture, and PEFT for a LoRA adapter, before forking, so that each rank need
    not import it in every trial."""
    if isinstance(task.workload.adapter, Lora):
        import_if_forkable("peft")
    names = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    if task.model.model_type is not None and task.model.model_type in names:
        package = transformers.models.auto.configuration_auto.model_type_to_module_name(task.model.model_type)
        import_if_forkable(f"transformers.models.{package}.modeling_{package}")


def import_if_forkable(name: str) -> None:
    """Import a module if it is installed. On GPUs, a child process tries the import first. If ranks could not be forked
    after it, each rank imports the module itself.

    A library may ask the GPU for its compute capability while it is imported, which initialises CUDA. `late_libraries`
    delays those that are known to do so; a model's own code may import others.
    """
    if name in sys.modules or name in _left_to_ranks:
        return
    if device_kind() == "cpu" or forking.can_fork_after(lambda: import_if_there(name)):
        import_if_there(name)
    else:
        _left_to_ranks.add(name)


def import_if_there(name: str) -> None:
    """Import a module if it is installed. An exception is printed, and the fork server continues.

    The ranks will meet the same exception and report it.
    """
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return
    except Exception:  # noqa: BLE001 -- other people's code
        traceback.print_exc()

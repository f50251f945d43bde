"""Imports of ranks and the service, for the process that `preloaded_forks` forks them from."""

import gc
import importlib

from shardtune.workers.rank.fork_server.early_imports import LATE_IMPORTS

_MODELS = ("llama", "gpt2", "mixtral")

for _name in (
    *LATE_IMPORTS,
    "shardtune.service.cli.commands.serve",
    # What that imports when it is called.
    "shardtune.service.app",
    "shardtune.service.server",
    "shardtune.service.cli.environment",
    "shardtune.service.cli.local_stack",
    "shardtune.service.cli.commands.keys",
    "shardtune.service.access.local_only",
    "shardtune.service.access.manage_keys",
    *(f"transformers.models.{name}.modeling_{name}" for name in _MODELS),
    # What ranks import when they adapt a model, 1.4 s of a core each.
    "peft.tuners.lora",
    "bitsandbytes.optim",
    "torchao.float8",
):
    importlib.import_module(_name)
# As the fork server does: no fork looks through what all of them share.
gc.collect()
gc.freeze()

"""AdamW with 8-bit moments by bitsandbytes, over plain tensors: whole parameters, or ZeRO's flat partitions."""

import importlib
import importlib.util

import torch
from torch import nn

from shardtune.api_schemas.training.optimizers import AdamW8bit
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.strategies.optimizers import adamw

_PACKAGE = "bitsandbytes"


def members(
    settings: AdamW8bit, parameters: list[nn.Parameter], _matrices: list[nn.Parameter], _shard: int
) -> list[torch.optim.Optimizer]:
    """One 8-bit AdamW for all parameters; an optimizer such as Muon would treat matrices separately.

    Raises:
        SetupError: bitsandbytes is not installed.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise SetupError(
            f"optimizer.kind ({settings.kind!r}) needs {_PACKAGE}, which this worker lacks; install "
            f"shardtune[{settings.extra}] there"
        )
    bitsandbytes = importlib.import_module(_PACKAGE)
    return [bitsandbytes.optim.AdamW8bit(parameters, **adamw.options(settings))]

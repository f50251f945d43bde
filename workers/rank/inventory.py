"""Library versions of this machine and dtypes of its processor, printed as JSON: `python -m
shardtune.workers.rank.inventory [RANKS]`.

With RANKS, also the rate of one rank's matrix products; without it no device is touched.
"""

import json
import sys
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shardtune.api_schemas.base import listed_dtypes
from shardtune.workers.rank.measure import dtypes
from shardtune.workers.rank.model import adapters, float8
from shardtune.workers.rank.strategies import optimizers
from shardtune.workers.rank.versions import library_versions


def describe(ranks: int | None = None) -> dict[str, Any]:
    """Library versions of this machine and dtypes of its processor, as the fields of
    `shardtune.workers.machine.inventory.Libraries`."""
    return {
        **library_versions(),
        "causal_lm_types": sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "adapters": adapters.trainable_kinds(),
        "optimizers": optimizers.installed_kinds(),
        "float8": float8.installed_recipes(),
        "cpu_dtypes": listed_dtypes(dtypes.native_on_cpu()),
        "matmul_flops": dtypes.matmul_flops(ranks) if ranks else {},
    }


if __name__ == "__main__":
    json.dump(describe(*map(int, sys.argv[1:])), sys.stdout)

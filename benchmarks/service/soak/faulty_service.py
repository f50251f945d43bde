"""The `shardtune` command with faults in its database statements: `python -m benchmarks.service.soak.faulty_service serve …`.

`SHARDTUNE_SOAK_FAULTS` is JSON with the fields of `Schedule`; `processes.FaultyReplica` gives each life a seed of its own,
so that it does not meet the faults of the one before.
"""

import json
import os
from pathlib import Path

from benchmarks.service.soak.statement_faults import Schedule, StatementFaults
from shardtune.service.cli import main

VARIABLE = "SHARDTUNE_SOAK_FAULTS"


def install() -> None:
    """Install the faults that the environment asks for."""
    fields = json.loads(os.environ[VARIABLE])
    StatementFaults(Schedule(fields["seed"], fields["rate"], Path(fields["record"]))).install()


if __name__ == "__main__":
    install()
    main()

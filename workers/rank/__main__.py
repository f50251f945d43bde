"""`python -m shardtune.workers.rank TRIAL_DIR [PROGRAM]`: one rank in a process of its own, also under torchrun."""

import gc
import importlib
import os
import sys
from pathlib import Path

from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.rank import private_names, trial_dir
from shardtune.workers.rank.process import parent_death


def main() -> int:
    """Tie this rank's process to its launcher (the kernel kills it when the launcher dies), then import the modules that load
    slowly, and run the rank."""
    if len(sys.argv) not in (2, 3):
        sys.stderr.write("usage: python -m shardtune.workers.rank TRIAL_DIR [trial|hardware]\n")
        return 2
    parent_death.tie_to_parent()
    folder = Path(sys.argv[1])
    progress = trial_dir.ProgressFile(folder, int(os.environ.get("RANK", "0")))
    # Collections would take a seventh of the imports, and find nothing.
    gc.disable()
    # From a disk that many hosts share, the imports may take longer than a run may go without progress.
    with private_names.explained(), progress.refreshed(Progress(phase="starting")):
        programs = importlib.import_module("shardtune.workers.rank.programs").PROGRAMS
    gc.freeze()
    gc.enable()
    code = int(programs[(sys.argv[2:] or ["trial"])[0]](folder))
    sys.stdout.flush()
    sys.stderr.flush()
    # The report is written. After a failure, exit handlers may wait for collectives whose peers are gone.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())

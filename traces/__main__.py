"""Print the diagnosis of a folder as JSON (`python -m shardtune.traces FOLDER`); exit code 2 with the reason where
there is none.

A process of its own for the worker's agent, which must renew its leases meanwhile.
"""

import sys
from pathlib import Path

from shardtune.traces.folder import diagnose_folder
from shardtune.traces.json_pieces import UnreadableTrace


def main(folder: Path) -> int:
    """Print the diagnosis; return the exit code."""
    try:
        print(diagnose_folder(folder).model_dump_json())
    except UnreadableTrace as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Print the diagnosis of a folder of traces as JSON (`python -m shardtune.traces FOLDER`); exit code 2 with a reason if
the traces cannot be diagnosed. The worker runs it as a separate process, so that it can renew its leases meanwhile."""

import sys
from pathlib import Path

from shardtune.traces.folder import diagnose_folder
from shardtune.traces.json_pieces import UnreadableTrace


def main(folder: Path) -> int:
    """Print the diagnosis of a folder of traces; return the exit code."""
    try:
        print(diagnose_folder(folder).model_dump_json())
    except UnreadableTrace as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

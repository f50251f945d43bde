"""`python -m shardtune.workers.rank.fork_server [RANKS]`: a fork server on this process's standard input and output."""

import gc
import importlib
import json
import sys

from shardtune.workers.rank import private_names


def main() -> None:
    """Import the server and the libraries of ranks, then serve."""
    # None of a million imported objects is garbage: collections took a seventh of the start (7.3 s to 6.2 of a core).
    gc.disable()
    try:
        with private_names.explained():
            server = importlib.import_module("shardtune.workers.rank.fork_server.server")
    except Exception as error:
        # The agent would otherwise have only the end of a traceback, and advise fresh interpreters, which fail as well.
        print(json.dumps({"event": "failed", "reason": _reason(error)}), flush=True)
        raise
    gc.freeze()
    gc.enable()
    server.serve(*map(int, sys.argv[1:]))


def _reason(error: Exception) -> str:
    """Sentence for the worker's owner about libraries that cannot be imported, with the remedy."""
    if isinstance(error, private_names.LibraryVersionError):
        return str(error)
    cause = f"{type(error).__name__}: {str(error)[:1000]}"
    return f"the libraries of the ranks cannot be imported ({cause}); install the `worker` extra into {sys.prefix}"


if __name__ == "__main__":
    main()

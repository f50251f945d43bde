"""`python -m shardtune.workers.rank.fork_server [RANKS]`: a fork server on this process's standard input and output."""

import gc
import importlib
import sys

from shardtune.workers.rank import private_names


def main() -> None:
    """Import the server and the libraries of ranks, then serve."""
    # None of a million imported objects is garbage: collections took a seventh of the start (7.3 s to 6.2 of a core).
    gc.disable()
    with private_names.explained():
        server = importlib.import_module("shardtune.workers.rank.fork_server.server")
    gc.freeze()
    gc.enable()
    server.serve(*map(int, sys.argv[1:]))


if __name__ == "__main__":
    main()

"""Programs that a launched rank can run, by name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from shardtune.workers.launch import Program
from shardtune.workers.rank import main
from shardtune.workers.rank.measure import hardware

PROGRAMS: Mapping[Program, Callable[[Path], int]] = {"trial": main.run, "hardware": hardware.run}
"""Functions that run the programs of ranks, by program name. Each runs in the given folder as the rank that environment
variables name, and returns the exit code."""

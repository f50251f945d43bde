"""Programs that a launched rank can run, by name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from shardtune.workers.launch import Program
from shardtune.workers.rank import main
from shardtune.workers.rank.measure import hardware

PROGRAMS: Mapping[Program, Callable[[Path], int]] = {"trial": main.run, "hardware": hardware.run}
"""Entry functions by program name; each runs in a folder as the rank that the environment names, and returns the exit code."""

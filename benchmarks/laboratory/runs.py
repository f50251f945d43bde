"""Measured runs of the laboratory, and where they are stored."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from shardtune.api_schemas.machines.hardware import MeasuredHardware


@dataclass(frozen=True)
class Run:
    """Timed steps of one program on a number of hosts."""

    program: str
    hosts: int
    seconds: tuple[float, ...]
    """Seconds of each step."""
    cores: tuple[float, ...]
    """Cores that each rank used during the steps."""

    @property
    def median_s(self) -> float:
        """Median seconds of a step."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range of the steps, as a fraction of their median."""
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median_s


@dataclass(frozen=True)
class Measurements:
    """Everything that one ladder measured."""

    mbit: int
    delay_ms: float
    steps: int
    hardware: MeasuredHardware
    """Rates and collectives as a worker measures them, over at most 4 hosts."""
    hardware_hosts: int
    runs: tuple[Run, ...]
    load_average: tuple[float, ...]
    """Load of the machine in the last minute, whenever a number of hosts began."""

    def of(self, program: str, hosts: int) -> list[Run]:
        """Runs of a program on a number of hosts."""
        return [run for run in self.runs if (run.program, run.hosts) == (program, hosts)]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of hosts that were measured, smallest first."""
        return tuple(sorted({run.hosts for run in self.runs}))

    def save(self, path: Path) -> None:
        """Store the measurements, so that they can be judged again."""
        values = {**vars(self), "hardware": self.hardware.model_dump(mode="json")}
        path.write_text(json.dumps({**values, "runs": [asdict(run) for run in self.runs]}))

    @classmethod
    def load(cls, path: Path) -> "Measurements":
        """Read stored measurements."""
        values = json.loads(path.read_text())
        hardware = MeasuredHardware.model_validate(values.pop("hardware"))
        runs = tuple(_run(run) for run in values.pop("runs"))
        load_average: Sequence[float] = values.pop("load_average")
        return cls(**values, hardware=hardware, runs=runs, load_average=tuple(load_average))


def _run(values: dict[str, object]) -> Run:
    return Run(**{**values, "seconds": tuple(values["seconds"]), "cores": tuple(values["cores"])})  # type: ignore[arg-type]

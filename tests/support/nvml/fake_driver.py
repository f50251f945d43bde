"""NVIDIA's driver library as a test wants it to answer: `libnvidia-ml.c`, built once, found by real pynvml, torch and DeepSpeed.

Only processes that are started with `environment` see it.
"""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("libnvidia-ml.c")
GIB = 1 << 30
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "total": 85520809984,
    "reserved": 646119424,
    "used": GIB,
    "pids": "",
    "reasons": 0,
    "ecc": 0,
    "remapped": "0,0,0,0",
    "capability": "9,0",
    "mig": 0,
    "sm_clock": 1980,
    "memory_clock": 2619,
    "pcie_generation": 5,
    "pcie_width": 16,
    "pcie_width_now": 16,
    "power_limit": 700000,
    "nvlinks": 18,
}
T4 = {name: value for name, value in H100.items() if name not in ("ecc", "remapped", "nvlinks", "mig")} | {
    "name": "Tesla T4",
    "total": 16106127360,
    "capability": "7,5",
}
NO_PERMISSION, GPU_IS_LOST, VERSION_MISMATCH = 4, 15, 18

Answers = dict[str, object]


@cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="fake-driver-")
    library = Path(folder.name) / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["cc", *options, "-o", str(library), str(_SOURCE)], check=True)
    return folder


class FakeDriver:
    """A machine's GPUs; `says` changes what they answer, also to processes under way."""

    def __init__(self, folder: Path, *devices: Answers, **system: object) -> None:
        self.answers, self.log = folder / "nvml.answers", folder / "nvml.log"
        self.says(*devices, **system)

    def says(self, *devices: Answers, **system: object) -> None:
        """Each device's answers by name, with a UUID and a bus of its own; `system`: driver, error."""
        owners: list[tuple[object, Answers]] = [("system", {"driver": "570.124.06", **system})]
        owners += [
            (index, {"uuid": f"GPU-{index}", "bus": f"00000000:{index:02X}:00.0", **device})
            for index, device in enumerate(devices)
        ]
        lines = [f"{owner} {key} {value}\n" for owner, answers in owners for key, value in answers.items()]
        scratch = self.answers.with_suffix(".next")
        scratch.write_text("".join(lines))
        scratch.replace(self.answers)

    @property
    def environment(self) -> dict[str, str]:
        """Environment for a child process: ours, with this driver and every GPU visible."""
        ours = {
            name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR")
        }
        library = {"LD_LIBRARY_PATH": f"{_folder().name}:{ours.get('LD_LIBRARY_PATH', '')}".rstrip(":")}
        return ours | library | {"FAKE_NVML": str(self.answers), "FAKE_NVML_LOG": str(self.log)}

    def python(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run Python on this machine."""
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @property
    def processes_that_initialised(self) -> list[int]:
        """Readings of the driver, in order."""
        return [int(line.split()[1]) for line in self.log.read_text().splitlines()] if self.log.exists() else []

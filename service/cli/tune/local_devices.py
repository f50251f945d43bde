"""NVIDIA GPUs of this machine as the kernel's driver lists them, without seconds of importing torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device files that exist while an NVIDIA driver is loaded: the first on Linux, the second on WSL2."""
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class LocalDevices:
    """GPUs of this machine."""

    has_driver: bool
    gpus: tuple[str, ...] | None
    """Product names of the GPUs; None if the driver's list cannot be read, as in some containers."""


def detect(drivers: Sequence[Path] = DRIVERS, gpus: Path = _GPUS) -> LocalDevices:
    """Return the GPUs that the driver lists."""
    if not any(driver.exists() for driver in drivers):
        return LocalDevices(has_driver=False, gpus=())
    try:
        names = tuple(_model_name((folder / "information").read_text()) for folder in sorted(gpus.iterdir()))
    except OSError:
        names = ()
    return LocalDevices(has_driver=True, gpus=names or None)


def _model_name(information: str) -> str:
    """Return the product name in a GPU's `information` file of the driver, which has a line such as `Model: <tab>
    NVIDIA H100 80GB HBM3`."""
    lines = (line.partition(":") for line in information.splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "Model"), "")

"""Determine which dtypes a device multiplies natively, the cost of emulating other dtypes, and the precision that
`auto` selects. Facts and measurements come from workers or from the GPU catalogue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardtune.api_schemas.base import Dtype, dtypes_listed, listed_dtypes
from shardtune.api_schemas.machines.hardware import Fingerprint, Offer
from shardtune.api_schemas.training.workload import PRECISIONS, Precision

_SLOWER = 0.5
"""Fraction of the float32 rate of matrix products. A dtype whose measured rate is below that fraction does not count as
native, whatever the processor reports."""
_SINCE = {"float16": (7, 0), "bfloat16": (8, 0), "float8": (8, 9)}
"""Lowest CUDA compute capability whose tensor cores support the dtype, by dtype (source: CUDA C++ Programming Guide,
compute capabilities)."""


def of_capability(capability: tuple[int, int]) -> str:
    """Return the dtypes that GPUs with this CUDA compute capability support natively, in the form in which a
    fingerprint lists them: `float32, float16, bfloat16`."""
    return listed_dtypes(["float32", *(name for name, since in _SINCE.items() if capability >= since)])


_CAPABILITIES = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
}
_AMD = {"cdna2": "float32, float16, bfloat16", "cdna3": "float32, float16, bfloat16, float8"}
"""Dtypes that AMD GPUs support natively, by architecture (source: the CDNA2 and CDNA3 white papers)."""


def of_architecture(name: str) -> str | None:
    """Return the native dtypes of a GPU architecture in the catalogue; None if they are not known."""
    return of_capability(_CAPABILITIES[name]) if name in _CAPABILITIES else _AMD.get(name)


@dataclass(frozen=True)
class DeviceDtypes:
    """Dtypes that one kind of device computes natively, and the rates measured on it."""

    name: str
    """Name of the device, such as `AMD EPYC` or `V100-SXM2-16GB`."""
    is_cpu: bool
    native: str | None = None
    """Dtypes in which the device multiplies natively, in the form in which a fingerprint lists them, such as `float32,
    bfloat16`. None if they are not known."""
    matmul_flops: Mapping[Dtype, float] = field(default_factory=dict)
    """Measured rates of matrix products on one rank, in FLOP/s, by dtype. A multiply-add counts as two operations."""

    @classmethod
    def from_fingerprint(cls, fingerprint: Fingerprint, matmul_flops: Mapping[Dtype, float]) -> "DeviceDtypes":
        """Build the dtypes and rates of a device from a worker's fingerprint (hardware and software versions) and its
        measured rates."""
        is_cpu = fingerprint.device == "cpu"
        return cls(fingerprint.cpu if is_cpu else fingerprint.gpu, is_cpu, fingerprint.native_dtypes, matmul_flops)

    @classmethod
    def from_offer(cls, offered: Offer) -> "DeviceDtypes":
        """Return the dtypes and rates of a device from a worker's offer. If the worker has made a full measurement, its
        rates replace those of the short test at the worker's start."""
        measured = offered.measured
        return cls.from_fingerprint(
            offered.fingerprint, offered.matmul_flops if measured is None else measured.matmul_flops
        )

    @property
    def native_names(self) -> tuple[str, ...]:
        """Names of the dtypes in which the device multiplies natively; empty if they are not known."""
        return () if self.native is None else dtypes_listed(self.native)

    def emulates(self, dtype: Dtype) -> bool | None:
        """Whether the device emulates matrix products in the dtype on a slower path instead of computing them natively;
        None if not known."""
        if dtype == "float32":
            return False
        if self.native is not None and dtype not in self.native_names:
            return True
        ours, exact = self.matmul_flops.get(dtype), self.matmul_flops.get("float32")
        if ours is not None and exact is not None:
            return ours < _SLOWER * exact
        return None if self.native is None else False

    @property
    def has_float8(self) -> bool:
        """Whether the device can train in float8, as far as is known. GPUs must have it natively; CPUs emulate it."""
        return self.is_cpu or self.native is None or "float8" in self.native_names

    @property
    def has_only_float16(self) -> bool:
        """Whether the device is a GPU with units for float16 and none for bfloat16, such as V100 and T4."""
        return not self.is_cpu and "float16" in self.native_names and "bfloat16" not in self.native_names

    def is_doubtful(self, dtype: Dtype) -> bool:
        """Whether a dtype that should be native was measured slower than float32, possibly because other programs used
        the device."""
        ours, exact = self.matmul_flops.get(dtype), self.matmul_flops.get("float32")
        return ours is not None and exact is not None and _SLOWER * exact <= ours < exact

    def rates(self, dtype: Dtype) -> str:
        """Format the measured rates of the device as text, such as ` (1.2 GFLOP/s in bfloat16, 67 GFLOP/s in float32)`;
        empty if not measured."""
        names: tuple[Dtype, ...] = (dtype, "float32")
        if any(name not in self.matmul_flops for name in names):
            return ""
        return f" ({', '.join(f'{flops_per_s(self.matmul_flops[name])} in {name}' for name in names)})"


def flops_per_s(rate: float) -> str:
    """Format a rate in FLOP/s with its unit, such as `1.2 GFLOP/s`, `67 GFLOP/s`, `712 TFLOP/s`."""
    unit, scale = ("TFLOP/s", 1e12) if rate >= 1e12 else ("GFLOP/s", 1e9)
    return f"{rate / scale:.{0 if rate >= 10 * scale else 1}f} {unit}"


def decide(stated: Precision | None, devices: Sequence[DeviceDtypes]) -> tuple[Precision, str | None]:
    """Return the precision in which to train on these devices, and a note for the user. A stated precision is kept,
    with a note if a device emulates its dtype. `auto` selects bf16-mixed if every device supports bfloat16 natively,
    and fp32 otherwise. If support is not known, it is assumed for GPUs and not for CPUs."""
    if stated is not None:
        return stated, next((note for device in devices if (note := emulation_note(stated, device))), None)
    mixed, exact = PRECISIONS["bf16-mixed"], PRECISIONS["fp32"]
    against = next(_reasons_against(mixed.compute_dtype, devices), None)
    if against is not None:
        hint = "; fp16-mixed computes in float16" if all(device.has_only_float16 for device in devices) else ""
        return exact, f"precision (auto): {exact.name}, because {against}{hint}"
    return mixed, f"precision (auto): {mixed.name}, because {_reason_for(mixed.compute_dtype, devices)}"


def emulation_note(precision: Precision, device: DeviceDtypes) -> str | None:
    """Describe the cost of a stated precision if the device only emulates its compute dtype; return None if the dtype
    is native."""
    dtype = precision.compute_dtype
    if not device.emulates(dtype):
        return None
    other = "fp16-mixed or fp32" if device.has_only_float16 else "fp32"
    return f"precision ({precision.name}): {device.name} only emulates {dtype}{device.rates(dtype)}; state {other}, or leave it out"


def _reasons_against(dtype: Dtype, devices: Sequence[DeviceDtypes]) -> Iterator[str]:
    for device in devices:
        emulated = device.emulates(dtype)
        if emulated:
            yield f"{device.name} only emulates {dtype}{device.rates(dtype)}"
        elif emulated is None and device.is_cpu:
            yield f"nobody has looked whether {device.name} has {dtype} natively"


def _reason_for(dtype: Dtype, devices: Sequence[DeviceDtypes]) -> str:
    native = next((device for device in devices if device.emulates(dtype) is False), None)
    if native is None:
        return f"GPUs of today have {dtype}, and nobody has looked at this one"
    doubt = (
        ", though slower when it was measured: on a busy machine, `measure-hardware` again when it is quiet"
        if native.is_doubtful(dtype)
        else ""
    )
    # Where the processor names the dtype, rates decide nothing, and a busy machine gives other ones at each start.
    rates = native.rates(dtype) if doubt or native.native is None else ""
    return f"{native.name} has {dtype} natively{rates}{doubt}"

"""Which dtypes a device multiplies matrices in by itself, what emulating one costs there, and the precision `auto` means.

What was found and measured comes from workers, or from the catalogue of GPUs; here is what follows from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.machines.hardware import Fingerprint, Offer
from shardtune.api_schemas.training.workload import PRECISIONS, Precision

_SLOWER = 0.5
"""Of float32's rate: a dtype that multiplies more slowly than this is not native, whatever the processor says of itself."""
_SINCE = {"float16": (7, 0), "bfloat16": (8, 0), "float8": (8, 9)}
"""CUDA compute capabilities from which tensor cores have the dtype (CUDA C++ Programming Guide, compute capabilities)."""


def of_capability(capability: tuple[int, int]) -> str:
    """What GPUs of a CUDA compute capability have units for, as a fingerprint says it: `float32, float16, bfloat16`."""
    return ", ".join(["float32", *(name for name, since in _SINCE.items() if capability >= since)])


_CAPABILITIES = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
}
_AMD = {"cdna2": "float32, float16, bfloat16", "cdna3": "float32, float16, bfloat16, float8"}
"""By the CDNA2 and CDNA3 white papers."""


def of_architecture(name: str) -> str | None:
    """The same by the architecture's name in the catalogue; None: not known."""
    return of_capability(_CAPABILITIES[name]) if name in _CAPABILITIES else _AMD.get(name)


@dataclass(frozen=True)
class DeviceDtypes:
    """What is known of one kind of device."""

    name: str
    """Such as `AMD EPYC` or `V100-SXM2-16GB`."""
    is_cpu: bool
    native: str | None = None
    """In a fingerprint's words; None: nobody has looked."""
    matmul_flops: Mapping[Dtype, float] = field(default_factory=dict)
    """Measured, of one rank; a multiply-add is two."""

    @classmethod
    def of(cls, found: Fingerprint, matmul_flops: Mapping[Dtype, float]) -> "DeviceDtypes":
        """What a machine has found and measured."""
        is_cpu = found.device == "cpu"
        return cls(found.cpu if is_cpu else found.gpu, is_cpu, found.native_dtypes, matmul_flops)

    @classmethod
    def of_worker(cls, offered: Offer) -> "DeviceDtypes":
        """The same of a worker; what was measured at length counts more than the look at its start."""
        measured = offered.measured
        return cls.of(offered.fingerprint, offered.matmul_flops if measured is None else measured.matmul_flops)

    def emulates(self, dtype: Dtype) -> bool | None:
        """Whether products in it go another, slower way than through units of their own; None: nobody knows."""
        if dtype == "float32":
            return False
        if self.native is not None and dtype not in self.native.split(", "):
            return True
        ours, exact = self.matmul_flops.get(dtype), self.matmul_flops.get("float32")
        if ours is not None and exact is not None:
            return ours < _SLOWER * exact
        return None if self.native is None else False

    def is_doubtful(self, dtype: Dtype) -> bool:
        """Whether a dtype that it has was measured slower than float32, which other programs may have done."""
        ours, exact = self.matmul_flops.get(dtype), self.matmul_flops.get("float32")
        return ours is not None and exact is not None and _SLOWER * exact <= ours < exact

    def rates(self, dtype: Dtype) -> str:
        """` (1.2 GFLOP/s in bfloat16, 67 GFLOP/s in float32)`; empty where that was not measured."""
        names: tuple[Dtype, ...] = (dtype, "float32")
        if any(name not in self.matmul_flops for name in names):
            return ""
        return f" ({', '.join(f'{flops_per_s(self.matmul_flops[name])} in {name}' for name in names)})"


def flops_per_s(rate: float) -> str:
    """Such as `1.2 GFLOP/s`, `67 GFLOP/s`, `712 TFLOP/s`."""
    unit, scale = ("TFLOP/s", 1e12) if rate >= 1e12 else ("GFLOP/s", 1e9)
    return f"{rate / scale:.{0 if rate >= 10 * scale else 1}f} {unit}"


def decide(stated: Precision | None, devices: Sequence[DeviceDtypes]) -> tuple[Precision, str | None]:
    """The precision that is trained on these devices, and what its user should know of it.

    A stated one stays as it is, with a word about a dtype that is only emulated. Left out (`auto`), it is bf16-mixed
    where every device has units for bfloat16, else fp32; where nobody knows, GPUs are taken to have them and CPUs not.
    """
    if stated is not None:
        return stated, next((note for device in devices if (note := emulation(stated, device))), None)
    mixed, exact = PRECISIONS["bf16-mixed"], PRECISIONS["fp32"]
    against = next(_reasons_against(mixed.compute_dtype, devices), None)
    if against is not None:
        return exact, f"precision (auto): {exact.name}, because {against}"
    return mixed, f"precision (auto): {mixed.name}, because {_reason_for(mixed.compute_dtype, devices)}"


def emulation(precision: Precision, device: DeviceDtypes) -> str | None:
    """What a stated precision costs where the device only emulates the dtype it computes in; None where it has that."""
    dtype = precision.compute_dtype
    if not device.emulates(dtype):
        return None
    return f"precision ({precision.name}): {device.name} only emulates {dtype}{device.rates(dtype)}; state fp32, or leave it out"


def _reasons_against(dtype: Dtype, devices: Sequence[DeviceDtypes]) -> Iterator[str]:
    for device in devices:
        emulated = device.emulates(dtype)
        if emulated:
            yield f"{device.name} only emulates {dtype}{device.rates(dtype)}"
        elif emulated is None and device.is_cpu:
            yield f"nobody has looked whether {device.name} has {dtype} natively"


def _reason_for(dtype: Dtype, devices: Sequence[DeviceDtypes]) -> str:
    known = next((device for device in devices if device.emulates(dtype) is False), None)
    if known is None:
        return f"GPUs of today have {dtype}, and nobody has looked at this one"
    doubt = ", though slower when it was measured: on a busy machine, `measure-hardware` again when it is quiet"
    return f"{known.name} has {dtype} natively{known.rates(dtype)}{doubt if known.is_doubtful(dtype) else ''}"

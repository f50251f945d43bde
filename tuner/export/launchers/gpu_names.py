"""Names of GPUs in SkyPilot and dstack, by the GPU catalogue's name."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.prediction import catalogue


@dataclass(frozen=True)
class LauncherNames:
    """Names of one GPU model in the launchers SkyPilot and dstack; None where a launcher does not know it. Models that
    differ in form or memory may share a name."""

    skypilot: str | None
    """Name of the accelerator in SkyPilot 0.14, such as `A100-80GB`."""
    dstack: str | None
    """Name of the GPU in gpuhunt 0.1, which dstack 0.22 uses. It includes the memory where GPUs with several sizes
    share a name, such as `A100:80GB`."""
    no_name: str = ""
    """Reason why a launcher has no name for the GPU, as a clause; empty where both have one."""


_NO_AMD = "of AMD's GPUs, SkyPilot 0.14 lists the MI300X alone"
_UNLISTED = "neither SkyPilot 0.14 nor gpuhunt 0.1 lists it"

NAMES = {
    "V100-SXM2-16GB": LauncherNames("V100", "V100:16GB"),
    "V100-SXM2-32GB": LauncherNames("V100-32GB", "V100:32GB"),
    "V100-PCIe-16GB": LauncherNames("V100", "V100:16GB"),
    "V100-PCIe-32GB": LauncherNames("V100-32GB", "V100:32GB"),
    "T4-16GB": LauncherNames("T4", "T4"),
    "A10-24GB": LauncherNames("A10", "A10"),
    "A10G-24GB": LauncherNames("A10G", "A10G"),
    "L4-24GB": LauncherNames("L4", "L4"),
    "L40S-48GB": LauncherNames("L40S", "L40S"),
    "A6000-48GB": LauncherNames("RTXA6000", "A6000"),
    "RTX-4090-24GB": LauncherNames("RTX4090", "RTX4090"),
    "A100-SXM4-40GB": LauncherNames("A100", "A100:40GB"),
    "A100-SXM4-80GB": LauncherNames("A100-80GB", "A100:80GB"),
    "A100-PCIe-40GB": LauncherNames("A100", "A100:40GB"),
    "A100-PCIe-80GB": LauncherNames("A100-80GB", "A100:80GB"),
    "A800-SXM4-80GB": LauncherNames(None, None, "SkyPilot 0.14 lists the PCIe card alone, and gpuhunt 0.1 none"),
    "H100-SXM5-80GB": LauncherNames("H100", "H100"),
    "H100-PCIe-80GB": LauncherNames("H100", "H100"),
    "H100-NVL-94GB": LauncherNames("H100-NVL", "H100NVL"),
    "H100-SXM-96GB-HBM2e-500W": LauncherNames(None, None, "the H100 of SkyPilot and of gpuhunt has 80 GB"),
    "H800-SXM5-80GB": LauncherNames(None, None, _UNLISTED),
    "H20-96GB": LauncherNames(None, None, _UNLISTED),
    "GH200-96GB": LauncherNames("GH200", "GH200"),
    "GH200-141GB": LauncherNames(None, None, "the GH200 of SkyPilot and of gpuhunt has 96 GB"),
    "H200-SXM-141GB": LauncherNames("H200", "H200"),
    "B200-SXM-180GB": LauncherNames("B200", "B200"),
    "B300-SXM-288GB": LauncherNames("B300", "B300"),
    "GB200-186GB": LauncherNames("GB200", "GB200"),
    "GB300-288GB": LauncherNames("GB300", "GB300"),
    "MI210-64GB": LauncherNames(None, "MI210", _NO_AMD),
    "MI250-128GB": LauncherNames(None, "MI250", _NO_AMD),
    "MI250X-128GB": LauncherNames(None, "MI250X", _NO_AMD),
    "MI300X-192GB": LauncherNames("MI300X", "MI300X"),
    "MI325X-256GB": LauncherNames(None, "MI325X", _NO_AMD),
    "MI350X-288GB": LauncherNames(None, "MI350X", _NO_AMD),
    "MI355X-288GB": LauncherNames(None, "MI355X", _NO_AMD),
}
"""Names of every GPU of the catalogue in each launcher; a GPU without a name in one of them has the reason instead."""
_AMD = re.compile(r"\b(amd|instinct|radeon|mi\d{2,3}[a-z]?)\b", re.IGNORECASE)
"""Pattern of words in a product name that show an AMD GPU."""
_NVIDIA = re.compile(r"\b(nvidia|tesla|geforce|quadro|rtx)\b", re.IGNORECASE)
_UNNAMED = LauncherNames(None, None, "Shardtune's catalogue lacks it")


def launcher_names(source: ExportSource) -> LauncherNames:
    """Names of the measured cluster's GPU in SkyPilot and dstack."""
    return NAMES.get(_catalogue_name(source), _UNNAMED)


def kubernetes_resource(source: ExportSource) -> str:
    """Name of the extended resource by which Kubernetes counts the measured cluster's GPUs."""
    return extended_resource(_any_name(source))


def extended_resource(gpu: str) -> str:
    """Name of the extended resource by which Kubernetes counts GPUs of this name."""
    return "amd.com/gpu" if _AMD.search(gpu) else "nvidia.com/gpu"


def kubernetes_notes(source: ExportSource) -> tuple[str, ...]:
    """Note that the Kubernetes resource is a guess, where the GPU's name does not show its vendor; empty elsewhere."""
    name = _any_name(source)
    if source.on_cpu or _catalogue_name(source) or _AMD.search(name) or _NVIDIA.search(name):
        return ()
    return (f"gpu: {kubernetes_resource(source)} is assumed for {name}; set the resource of its device plugin",)


def shared_name_notes(
    source: ExportSource, program: str, name_of: Callable[[LauncherNames], str | None]
) -> tuple[str, ...]:
    """Note on other GPU models that have the same name in a launcher as the measured GPU; empty where there are none."""
    own, name = _catalogue_name(source), name_of(launcher_names(source))
    others = [model for model, names in NAMES.items() if name is not None and name_of(names) == name and model != own]
    if source.on_cpu or not others:
        return ()
    origin = "is projected, and was not measured" if source.is_projected else "was measured"
    return (f"gpu: {own} {origin}; {program}'s {name} can also be {' or '.join(others)}",)


def _any_name(source: ExportSource) -> str:
    """Name of the measured cluster's GPU: its name in the catalogue, else the name that the device reports."""
    return _catalogue_name(source) or source.cluster.gpu


def _catalogue_name(source: ExportSource) -> str:
    """Name of the measured cluster's GPU in the catalogue; empty where the catalogue lacks it."""
    try:
        return catalogue.find(source.cluster.gpu).name
    except ValueError:
        return ""

"""Facts that every launcher's file says in its own words: name, environment, packages and the command on each node."""

import re
import shlex
from collections.abc import Iterable

from shardtune.api_schemas.training.padding import FLASH
from shardtune.tuner.export import environment, launch, sample_lengths
from shardtune.tuner.export.precision import float8, quantization
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource

SET_ME = "SET-ME"
"""Placeholder for values that only the user knows: an image, a GPU's name, a project's package or script."""
_LONGEST_NAME = 41
"""Maximum number of characters in the name of a dstack run; SkyPilot and Kubernetes accept longer names."""
_FLASH_PACKAGE = "flash-attn"
_FLASH_BUILD = ("ninja", "packaging", "psutil", "setuptools", "wheel")
"""Packages that flash-attn's build imports besides torch."""
_VERSION = re.compile(r"\d{1,4}(\.\d{1,6}){1,3}((a|b|rc)\d{1,3}|\.post\d{1,3})?", re.ASCII)


def task_name(source: ExportSource) -> str:
    """Name under which a launcher starts the exported training: `train-` and the study's id, in lower-case letters,
    digits and hyphens."""
    # The study's id passes no pattern here: a name must be right whatever text it is made of.
    folded = re.sub(r"[^a-z0-9]+", "-", f"train-{source.study.study_id}".lower())
    return folded[:_LONGEST_NAME].strip("-")


def is_own(source: ExportSource) -> bool:
    """Whether the study trained the user's own code, which no exported script can start."""
    return source.study.spec.model.is_own


def variables(source: ExportSource) -> dict[str, str]:
    """Environment variables, by name, with which the configuration was measured."""
    # As in launch.sh; a reader who replaces the command keeps them.
    cpu_only = {"CUDA_VISIBLE_DEVICES": ""} if source.on_cpu else {}
    if source.on_cpu and source.cluster.nodes == 1:
        cpu_only["GLOO_SOCKET_IFNAME"] = "lo"
    return cpu_only | environment.settings(source)


def requirements(source: ExportSource) -> list[str]:
    """Packages that the exported script needs, as requirements for pip, in the versions with which the configuration
    was measured."""
    fingerprint = source.study.fingerprint
    names = ["torch", "transformers", *(["deepspeed"] if source.config.backend == "zero" else [])]
    packages = [_pinned(name, getattr(fingerprint, name, None)) for name in names]
    packages += ["peft"] if source.workload.adapter is not None else []
    further = {source.workload.optimizer.package, "bitsandbytes" if quantization.is_used(source) else None}
    packages += sorted(name for name in further if name is not None)
    packages += [_pinned("torchao", getattr(fingerprint, "torchao", None))] if float8.is_used(source) else []
    packages += [_FLASH_PACKAGE] if source.attention == FLASH else []
    return [*packages, SET_ME] if is_own(source) else packages


def _pinned(name: str, version: str | None) -> str:
    # Without the local part: PyPI has no torch 2.13.0+cu130, and a worker may report any text.
    public = (version or "").partition("+")[0]
    return f"{name}=={public}" if _VERSION.fullmatch(public) else name


def python_version(source: ExportSource) -> str:
    """Version of Python with which the configuration was measured, such as `3.12`; 3.12 where it is unknown."""
    fingerprint = source.study.fingerprint
    version = re.match(r"3\.1[0-9](?![0-9])", fingerprint.python if fingerprint is not None else "")
    return version[0] if version else "3.12"


def install_commands(source: ExportSource, options: str = "") -> list[str]:
    """Shell commands that install the exported script's packages with uv. `options`: further options of `uv pip
    install`."""
    install = f"uv pip install {options}".strip()
    packages = requirements(source)
    commands = [f"{install} {_quoted(package for package in packages if package != _FLASH_PACKAGE)}"]
    if _FLASH_PACKAGE in packages:
        # PyPI has its sources alone, whose build imports the torch that is installed.
        commands.append(f"{install} {_quoted(_FLASH_BUILD)}")
        commands.append(f"{install} --no-build-isolation {_FLASH_PACKAGE}")
    return commands


def _quoted(packages: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, packages))


def node_command(source: ExportSource) -> str:
    """Shell command that starts the training on one node; on several nodes it expects MASTER_ADDR to be set."""
    if not is_own(source):
        return "bash launch.sh"
    return f'"${{PYTHON:-python}}" -m torch.distributed.run {launch.torchrun_options(source)} {SET_ME}'


def notes(source: ExportSource, program: str) -> tuple[str, ...]:
    """Notes on what a launcher's file cannot express, or what its user has to fill in."""
    lines = [] if is_own(source) else [*sample_lengths.snippet_notes(source)]
    if is_own(source):
        lines.append(f"script: set {SET_ME}; the study trained your own code, which the file cannot name")
    lines.append(f"machines: {_machines(source)}; {program} may choose others")
    return (*lines, *_versions(source), *environment.unset_notes(source))


def _machines(source: ExportSource) -> str:
    if source.is_projected:
        return f"the figures are projected to {source.machines}, where nothing was measured"
    memory = f"{source.cluster.host_memory_gib:g} GiB of host memory per node"
    return f"{source.machines} were measured, with {memory}{_cores(source)}"


def _cores(source: ExportSource) -> str:
    fingerprint = source.study.fingerprint
    return "" if fingerprint is None or not fingerprint.cpu_count else f" and {fingerprint.cpu_count} cores"


def _versions(source: ExportSource) -> tuple[str, ...]:
    fingerprint = source.study.fingerprint
    if fingerprint is None or fingerprint.torch is None:
        return ("versions: those that measured are unknown, so that none is pinned",)
    cuda = f" with CUDA {remark(fingerprint.cuda)}" if fingerprint.cuda else ""
    return (
        f"versions: torch {remark(fingerprint.torch)}{cuda} measured; PyPI's torch may bring another CUDA, and no driver is installed",
    )

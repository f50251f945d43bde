"""Reject an invalid study before any process starts; the service would reject it ten seconds later."""

import difflib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardtune.api_schemas.formatting import field_line
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.tune import local_devices
from shardtune.service.cli.tune.local_devices import LocalDevices
from shardtune.service.http.errors import Invalid, invalid_from_value_error
from shardtune.service.studies import model_checks, validation
from shardtune.tuner.prediction import catalogue

if TYPE_CHECKING:
    from shardtune.service.cli import local_stack
    from shardtune.service.workers import compatibility, target_rungs
else:
    # They import SQLAlchemy or numpy, which most rejections need not wait for.
    local_stack = LazyModule("shardtune.service.cli.local_stack")
    compatibility = LazyModule("shardtune.service.workers.compatibility")
    target_rungs = LazyModule("shardtune.service.workers.target_rungs")

CPU_RANKS = 2
"""Default number of ranks on a machine without GPUs."""
_PLENTY_GIB = 1e5
"""Placeholder for a rank's memory in GiB in checks before a worker exists: only the worker knows the memory, and no
check here uses it."""


def check_study(spec: StudyRequest, ranks: int | None) -> None:
    """Reject a study that no worker could run.

    Raises:
        InputError: names field, value and remedy.
    """
    try:
        cluster = expected_cluster(spec, ranks)
        if spec.target is not None and cluster is not None:
            spec = target_rungs.on_rung(spec, cluster, has_worker=False)
        validation.check_without_worker(spec, cluster)
    except Invalid as error:
        raise as_input_error(error) from None


def check_architecture(model: ModelSpec) -> None:
    """Reject a model that no trial could train, such as an encoder-decoder.

    Raises:
        InputError: names field, value and remedy.
    """
    try:
        model_checks.check_architecture(model)
    except Invalid as error:
        raise as_input_error(error) from None


def check_hardware(spec: StudyRequest, hosts: Sequence[str], devices: LocalDevices | None = None) -> None:
    """Reject a study for a cluster that this machine does not have, unless a worker elsewhere may run it.

    `hosts` holds the options that name other hosts. `devices` lists the machine's GPUs; if None, they are looked up on
    this machine.

    Raises:
        InputError: names the cluster, the devices of this machine, and the remedy.
    """
    # Workers elsewhere may serve a shared database, and may register while a study waits for them.
    if hosts or spec.wait_for_worker_s is not None or local_stack.DATABASE_VARIABLE in os.environ:
        return
    cluster = expected_cluster(spec, None)
    if cluster is None or cluster.device == "cpu":
        return
    reason = _missing_hardware(cluster, devices or local_devices.detect())
    if reason is None:
        return
    shown = spec.cluster if isinstance(spec.cluster, str) else compatibility.describe(spec.cluster)
    raise InputError(
        f"cluster ({shown}) cannot run on this machine: {reason}; run `shardtune tune` on that hardware, use "
        '"cluster": "local" for what is here, or only predict with `shardtune predict FILE`'
    )


def _missing_hardware(cluster: Cluster, devices: LocalDevices) -> str | None:
    if cluster.nodes > 1:
        return f"it has {cluster.nodes} hosts, and tune uses one without --launcher"
    if not devices.has_driver:
        return "it has no NVIDIA GPU"
    if devices.gpus is None:
        return None
    if len(devices.gpus) < cluster.gpus_per_node:
        return f"it has {len(devices.gpus)} GPUs"
    others = [name for name in devices.gpus if not _is_same_gpu(name, cluster.gpu)]
    return f"it has {others[0]}" if len(others) > len(devices.gpus) - cluster.gpus_per_node else None


def _is_same_gpu(name: str, gpu: str) -> bool:
    try:
        return catalogue.find(name).name == catalogue.find(gpu).name
    # A card that the catalogue lacks is compared by the worker.
    except ValueError:
        return True


def as_input_error(error: Invalid) -> InputError:
    """Convert the service's rejection of a study to an `InputError` of the command line."""
    return InputError(*(field_line(item.model_dump()) for item in error.errors))


def expected_cluster(
    spec: StudyRequest, ranks: int | None, gpu_files: Sequence[Path] = local_devices.DRIVERS
) -> Cluster | None:
    """Return the cluster that the study will run on; None if only the worker can detect it.

    Raises:
        Invalid: the cluster's name is unknown.
    """
    if isinstance(spec.cluster, Cluster):
        return spec.cluster
    if spec.cluster != "local":
        try:
            return catalogue.parse_cluster(spec.cluster)
        except ValueError as error:
            raise invalid_from_value_error("cluster", error) from None
    # Torch would say which GPUs, and takes seconds to import; the driver's device says that there are some.
    if any(device.exists() for device in gpu_files):
        return None
    return Cluster(device="cpu", gpus_per_node=ranks or CPU_RANKS, memory_gib=_PLENTY_GIB, host_memory_gib=_PLENTY_GIB)


def check_own_code(model: ModelSpec, allowed: Sequence[str]) -> None:
    """Reject a study with the user's own model or script, unless an option such as `--allow-model` allows it to run.

    `allowed` holds the worker's options, each followed by its value. If it holds no option that allows code of this
    kind, the check passes: the worker's environment may allow the code.

    Raises:
        InputError: names field, value and the option.
    """
    kinds = (
        ("entry_point", model.entry_point, "--allow-model", "{}", "SHARDTUNE_WORKER_ALLOWED_MODELS"),
        ("script", model.script, "--allow-script", "{}=/path/to/train.py", "SHARDTUNE_WORKER_ALLOWED_SCRIPTS"),
    )
    for field, name, option, form, variable in kinds:
        values = [value for flag, value in zip(allowed[::2], allowed[1::2], strict=True) if flag == option]
        names = {value.partition("=")[0]: value for value in values}
        if name is None or name in names or (not values and os.environ.get(variable)):
            continue
        # A guess from the options in use: their commands are long, and a name is easily mistyped.
        close = difflib.get_close_matches(name, names, 1)
        if close:
            suggestion = shlex.join([option, name + names[close[0]].removeprefix(close[0])])
            remedy = f"did you mean {suggestion}?"
        else:
            remedy = f"add {option} {form.format(name)}"
        available = f"only {', '.join(names)}" if names else f"there is no {option}"
        raise InputError(f"model.{field} ({name!r}) is not allowed by this command line: {available}; {remedy}")

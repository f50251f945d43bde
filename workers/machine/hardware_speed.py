"""Measured compute and link rates of this machine, once per fingerprint (hardware and software versions), stored beside
the trial directories."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.hardware import Fingerprint, HardwareReport, Inventory, MeasuredHardware, banded
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import Launcher, LaunchFailed
from shardtune.workers.machine import host_facts
from shardtune.workers.trial_dir import tail

_DEADLINE_S = 300.0
"""Time limit in seconds of a measurement of the hardware's rates."""
_FAR_BELOW = 0.25
"""Fraction of a link's nominal rate. If the measured bandwidth is below it, the operator gets a note.

It is low: a single TCP connection over a good network reaches more than this fraction, and one over a slow network
less.
"""
_CAUSES = {
    "cuda": "NCCL most likely runs over sockets: look for NET/Socket in the output with NCCL_DEBUG=INFO, then see to the "
    "network plugin, /dev/infiniband in containers, and NCCL_IB_HCA",
    "cpu": "another interface may carry it: name the one to use with --interface",
}


def measure(
    launcher: Launcher, offered: Inventory, work_dir: Path, give_up: Callable[[], bool]
) -> HardwareReport | None:
    """Measure the hardware's rates with as many ranks as the largest trial, and store them; None if the measurement was
    interrupted. The launcher must be prepared.

    Raises:
        LaunchFailed: a rank failed or took too long.
    """
    private_folder.make(work_dir, "work_dir")
    with tempfile.TemporaryDirectory(dir=work_dir, prefix="hardware-") as name:
        folder = Path(name)
        if not _run(launcher, folder, offered.cluster.world_size, give_up):
            return None
        measured = MeasuredHardware.model_validate_json((folder / "hardware.json").read_bytes())
    fingerprint = with_bandwidth(offered.fingerprint, measured, offered.cluster.world_size)
    report = HardwareReport(
        cluster=offered.cluster, fingerprint=offered.fingerprint, measured=measured, notes=notes(fingerprint)
    )
    store(work_dir, offered, report)
    return report


def store(work_dir: Path, offered: Inventory, report: HardwareReport) -> None:
    """Store a report of measured rates on disk, where the function `stored` finds it. The file is replaced in one
    operation, so that a process that is killed meanwhile leaves a complete report or none."""
    path = _path(work_dir, offered)
    partial = path.with_suffix(".partial")
    partial.write_text(report.model_dump_json(indent=2) + "\n")
    partial.replace(path)


def _run(launcher: Launcher, folder: Path, ranks: int, give_up: Callable[[], bool]) -> bool:
    """Run the ranks that measure the hardware until they end; returns false if they were interrupted."""
    ends_s = now_s() + _DEADLINE_S
    try:
        launcher.launch(folder, Launch.of(ranks, program="hardware"))
        while len(launcher.exits) < ranks and launcher.lost is None and now_s() < ends_s:
            if give_up():
                return False
            # One failed rank leaves the others in a collective until its timeout.
            if any(end.code for end in launcher.exits):
                break
            launcher.wait(0.25)
        ends = launcher.exits
    finally:
        launcher.kill()
    failed = next((end for end in ends if end.code), None)
    if failed is not None or len(ends) < ranks:
        problem = f"rank {failed.rank} failed" if failed else f"it took longer than {_DEADLINE_S:.0f} s"
        last = tail(folder / f"rank_{failed.rank if failed else 0}.log", 1500)
        raise LaunchFailed(f"the hardware could not be measured: {problem}. Its last words:\n{last or '(none)'}")
    return True


def stored(work_dir: Path, offered: Inventory) -> MeasuredHardware | None:
    """Stored rates of this machine that were measured with the same number of ranks and the same fingerprint (hardware
    and software versions); None if there are none."""
    try:
        report = HardwareReport.model_validate_json(_path(work_dir, offered).read_bytes())
    except (OSError, ValidationError):
        return None
    stored_dtypes, present_dtypes = report.fingerprint.native_dtypes, offered.fingerprint.native_dtypes
    # ONEDNN_MAX_CPU_ISA can disable instructions, and the same processor then multiplies at another speed.
    return report.measured if None in (stored_dtypes, present_dtypes) or stored_dtypes == present_dtypes else None


def _path(work_dir: Path, offered: Inventory) -> Path:
    # The key has the fields of the fingerprint's first version: later ones describe the hardware's settings, and a new
    # release may detect them differently.
    nodes = f"{offered.cluster.nodes}x" if offered.cluster.nodes > 1 else ""
    ranks = offered.cluster.world_size // offered.cluster.nodes
    return work_dir / f"hardware-{offered.fingerprint.first_version().content_key()}-{nodes}{ranks}.json"


def with_bandwidth(fingerprint: Fingerprint, measured: MeasuredHardware | None, ranks: int) -> Fingerprint:
    """Add the measured bandwidths within a host and between hosts to a fingerprint (hardware and software versions).
    Each is rounded to a band 10 % wide, so that small deviations do not change the fingerprint."""
    reduced = [item for item in measured.collectives if item.operation == "all_reduce"] if measured else []
    bands = {}
    for field, is_across in (("intra_node_gb_per_s", False), ("inter_node_gb_per_s", True)):
        matching = [item for item in reduced if (item.nodes > 1) == is_across]
        if matching and ranks > 1:
            # Over all ranks a ring crosses between two hosts once: that is what the hosts' links carry.
            largest = max(matching, key=lambda item: (item.ranks or ranks, item.bytes))
            bands[field] = banded(largest.bus_gb_per_s(ranks))
    return fingerprint.model_copy(update=bands)


def notes(fingerprint: Fingerprint) -> tuple[str, ...]:
    """Notes for the operator about measured bandwidths that are far below the nominal rates of the links."""
    rates = host_facts.nominal_gb_per_s(fingerprint.nics or "")
    nominal, measured = max(rates.values(), default=0.0), fingerprint.inter_node_gb_per_s
    if measured is None or measured >= _FAR_BELOW * nominal:
        return ()
    return (
        f"hosts exchange {measured:g} GB/s, {measured / nominal:.1%} of what their links allow ({fingerprint.nics}): "
        f"{_CAUSES[fingerprint.device]}",
    )

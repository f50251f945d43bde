"""Measure this machine once per fingerprint and keep the result beside the trial directories."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from shardtune.api_schemas.hardware import HardwareReport, Inventory, MeasuredHardware
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import Launcher, LaunchFailed
from shardtune.workers.trial_dir import tail

_DEADLINE_S = 300.0


def measure(
    launcher: Launcher, offered: Inventory, work_dir: Path, give_up: Callable[[], bool]
) -> HardwareReport | None:
    """Have all ranks of the largest trial measure; None when interrupted. The launcher is prepared.

    Raises:
        LaunchFailed: a rank failed or took too long.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work_dir, prefix="hardware-") as name:
        folder = Path(name)
        if not _run(launcher, folder, offered.cluster.world_size, give_up):
            return None
        measured = MeasuredHardware.model_validate_json((folder / "hardware.json").read_bytes())
    report = HardwareReport(cluster=offered.cluster, fingerprint=offered.fingerprint, measured=measured)
    path = _path(work_dir, offered)
    partial = path.with_suffix(".partial")
    partial.write_text(report.model_dump_json(indent=2) + "\n")
    partial.replace(path)
    return report


def _run(launcher: Launcher, folder: Path, ranks: int, give_up: Callable[[], bool]) -> bool:
    """Run the ranks to their end; False when interrupted."""
    ends_s = now_s() + _DEADLINE_S
    try:
        launcher.launch(folder, Launch.of(ranks, program="hardware"))
        while len(launcher.exits) < ranks and launcher.lost is None and now_s() < ends_s:
            if give_up():
                return False
            if any(end.code for end in launcher.exits):
                break
            launcher.wait(0.25)
        ends = launcher.exits
    finally:
        launcher.kill()
    failed = next((end for end in ends if end.code), None)
    if failed is not None or len(ends) < ranks:
        what = f"rank {failed.rank} failed" if failed else f"it took longer than {_DEADLINE_S:.0f} s"
        last = tail(folder / f"rank_{failed.rank if failed else 0}.log", 1500)
        raise LaunchFailed(f"the hardware could not be measured: {what}. Its last words:\n{last or '(none)'}")
    return True


def stored(work_dir: Path, offered: Inventory) -> MeasuredHardware | None:
    """What was measured here with as many ranks under the same fingerprint."""
    try:
        report = HardwareReport.model_validate_json(_path(work_dir, offered).read_bytes())
    except (OSError, ValidationError):
        return None
    was, now = report.fingerprint.native_dtypes, offered.fingerprint.native_dtypes
    # With other units the same processor multiplies at another speed: ONEDNN_MAX_CPU_ISA can take some away.
    return report.measured if None in (was, now) or was == now else None


def _path(work_dir: Path, offered: Inventory) -> Path:
    # By the first version's fields: the others say how the hardware is set up, which a new release may look at anew.
    return work_dir / f"hardware-{offered.fingerprint.first_version().content_key()}-{offered.cluster.world_size}.json"

"""How often the kernel's OOM killer struck where our ranks live: what tells an OOM kill from any other SIGKILL."""

from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def oom_kills(proc: Path = Path("/proc"), cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Processes killed so far, counted by our own control group, or by the whole machine where none counts.

    Every kill is charged to the victim's group, also when the whole machine ran out, so the group's own counter is
    enough and is blind to other people's kills.
    """
    for path in [*_counters(proc, cgroup_root), proc / "vmstat"]:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _counters(proc: Path, root: Path) -> list[Path]:
    """`memory.events` (cgroup v2) and `memory.oom_control` (v1) of the group this process is in."""
    paths = []
    for controllers, group in cgroups(proc):
        if controllers == "":
            paths += [root / group / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            paths += [root / "memory" / group / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return paths


def cgroups(proc: Path = Path("/proc")) -> list[tuple[str, str]]:
    """(controllers, group path without leading slash) of this process; v2 has empty controllers."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(fields[1], fields[2].lstrip("/")) for line in lines if len(fields := line.split(":", 2)) == 3]

"""Count of the kernel's OOM kills in this control group, by which an OOM kill is distinguished from any other
SIGKILL."""

from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def oom_kills(proc: Path = Path("/proc"), cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Number of processes that the kernel has killed for lack of memory in this control group. If control groups do not
    count such kills, it is the number on the whole machine."""
    # A kill is charged to the victim's group, also when the whole machine ran out: the group's counter is enough, and
    # does not count other people's kills.
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
    """Files with OOM counters of this process's control group: `memory.events` (cgroup v2) and `memory.oom_control`
    (v1)."""
    paths = []
    for controllers, group in cgroups(proc):
        if controllers == "":
            paths += [root / group / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            paths += [root / "memory" / group / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return paths


def cgroups(proc: Path = Path("/proc")) -> list[tuple[str, str]]:
    """Control groups of this process, each as its controllers (empty for cgroup v2) and its path without a leading
    slash."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(fields[1], fields[2].lstrip("/")) for line in lines if len(fields := line.split(":", 2)) == 3]

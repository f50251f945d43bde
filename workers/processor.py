"""Identity of this host's processor, for folders of code that compilers made for it alone (`-march=native`)."""

import hashlib
import itertools
import platform
from pathlib import Path

_DECISIVE = frozenset(
    [
        *("vendor_id", "cpu family", "model", "flags"),
        # On Arm.
        *("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
    ]
)
"""Names of the lines of /proc/cpuinfo that decide which instructions a compiler may use."""


def digest(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return eight hexadecimal digits that are equal for processors with the same instructions.

    Unlike hosts may share a home folder. There a program that was compiled for a larger processor ends a process on a
    smaller one with SIGILL.
    """
    facts = [platform.machine()]
    try:
        # The first processor only: the kernel asks each one for its clock while the file is read.
        with cpuinfo.open() as lines:
            for line in itertools.takewhile(str.strip, lines):
                name, _, value = line.partition(":")
                if name.strip() in _DECISIVE:
                    facts.append(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    except OSError:
        # Without /proc the kind of machine must do.
        pass
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]

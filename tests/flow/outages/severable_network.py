"""A network namespace with one link to this machine that can be cut without a word; for root on Linux."""

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

_NUMBER = os.getpid() % 65_536
_PREFIX, _LAST = f"10.{200 + _NUMBER // 16_384}.{_NUMBER // 64 % 256}", _NUMBER % 64 * 4
HERE, THERE = f"{_PREFIX}.{_LAST + 1}", f"{_PREFIX}.{_LAST + 2}"
"""Addresses of both ends."""


class CutNetwork:
    """Processes started by `within` live at the other end of the link."""

    def __init__(self) -> None:
        self._name, self._here, self._there = f"shardtune-{_NUMBER}", f"st{_NUMBER}h", f"st{_NUMBER}t"
        self.within = ["ip", "netns", "exec", self._name]

    @staticmethod
    def is_possible() -> bool:
        """Whether this process may make one."""
        if os.getuid() != 0 or shutil.which("ip") is None:
            return False
        return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0

    def __enter__(self) -> Self:
        _ip("netns", "add", self._name)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self._name)
        _ip("address", "add", f"{HERE}/30", "dev", self._here)
        _ip("-n", self._name, "address", "add", f"{THERE}/30", "dev", self._there)
        _ip("link", "set", self._here, "up")
        self.mend()
        return self

    def cut(self) -> None:
        """Cut the link silently in both directions."""
        _ip("-n", self._name, "link", "set", self._there, "down")

    def mend(self) -> None:
        """Packets arrive again."""
        _ip("-n", self._name, "link", "set", self._there, "up")

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        _ip("link", "delete", self._here)
        _ip("netns", "delete", self._name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)

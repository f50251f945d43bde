"""A host: its namespaces, what runs on it, and its ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import links, processes
from tests.lab.claim import MARK, Claim

REPOSITORY = Path(__file__).parents[2]
_INIT = Path(__file__).with_name("init.py")
_BOOT_S = 30.0
_SAID_CHARACTERS = 4_000
_TMP = Path("/tmp")


@dataclass(frozen=True)
class Host:
    """One of a laboratory's hosts, up or not."""

    claim: Claim
    name: str
    address: str
    mbit: int

    @property
    def pid(self) -> int:
        """This machine's number for the host's process 1."""
        return int((self.claim.folder / f"{self.name}.pid").read_text())

    @property
    def is_up(self) -> bool:
        try:
            return not processes.is_dead(self.pid)
        except FileNotFoundError:
            return False

    def boot(self) -> None:
        """Start it, with nothing on it but its process 1."""
        pid_file = self.claim.folder / f"{self.name}.pid"
        pid_file.unlink(missing_ok=True)
        namespaces = ["unshare", "--mount", "--uts", "--pid", "--net", "--fork", "--kill-child"]
        with (self.claim.folder / f"{self.name}.log").open("ab") as log:
            starting = subprocess.Popen(
                [*namespaces, sys.executable, "-I", "-S", str(_INIT), self.name, str(self.claim.folder), *_visible()],
                env={**os.environ, MARK: str(self.claim.folder)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            )  # fmt: skip
        until_s = time.monotonic() + _BOOT_S
        while not pid_file.exists():
            if starting.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"{self.name} did not start: see {log.name}")
            time.sleep(0.002)

    def plug(self) -> None:
        """Join it to the others."""
        links.plug(self.claim.number, self.name, self.pid, self.address, self.mbit)

    def command(self, words: Sequence[str], outlive: bool = False) -> list[str]:
        """Words that run the given ones on the host. They die with the first process, unless they are to `outlive` it."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-n", "-p", f"--wdns={REPOSITORY}"]
        return [*enter, *([] if outlive else ["setpriv", "--pdeathsig", "KILL"]), *words]

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], outlive: bool = False, **options: Any
    ) -> "subprocess.Popen[bytes]":
        """Run something on the host; `options` are Popen's."""
        popen_options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        marked = {**os.environ, **environment, MARK: str(self.claim.folder)}
        return subprocess.Popen(self.command(words, outlive), env=marked, **popen_options)

    def daemon(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Run something that stays until the host goes; what it says is in the laboratory's folder."""
        with self._log(name).open("ab") as log:
            return self.start(words, environment, outlive=True, stdout=log, stderr=log)

    def said(self, name: str) -> str:
        """End of what the daemon of that name said."""
        return self._log(name).read_text(errors="replace")[-_SAID_CHARACTERS:]

    def _log(self, name: str) -> Path:
        return self.claim.folder / f"{self.name}.{name}.log"

    def living(self) -> set[int]:
        """All processes on the host but its first."""
        if not self.is_up:
            return set()
        return {pid for pid in processes.on_host(self.pid) - {self.pid} if not processes.is_dead(pid)}

    def find(self, *words: str) -> set[int]:
        """Processes on the host whose command line has each of the words in it."""
        lines = {pid: " ".join(processes.words_of(pid)) for pid in self.living()}
        return {pid for pid, line in lines.items() if all(word in line for word in words)}

    def cut_power(self) -> None:
        """End all of it at once."""
        first, entered = self.pid, processes.with_host(self.pid)
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        # The kernel keeps process 1 until all others are waited for; an `nsenter` stops with what it waits for.
        processes.resume_all(lambda: entered)
        processes.kill_all(lambda: {first})

    def stop(self) -> None:
        """Freeze all of it: nobody answers, nobody is told."""
        processes.stop_all(lambda: {self.pid, *self.living()})

    def resume(self) -> None:
        """Let it run again."""
        processes.resume_all(lambda: processes.with_host(self.pid))


def _visible() -> list[str]:
    """Folders under /tmp that hosts need: the repository, the interpreter's, libraries built for it."""
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    needed = [str(REPOSITORY), sys.prefix, sys.base_prefix, *sys.path, *([extensions] if extensions else [])]
    folders = sorted({Path(path).resolve() for path in needed if path and Path(path).is_dir()})
    under_tmp = [folder for folder in folders if folder.is_relative_to(_TMP)]
    return [
        str(folder)
        for folder in under_tmp
        if not any(folder != other and folder.is_relative_to(other) for other in under_tmp)
    ]

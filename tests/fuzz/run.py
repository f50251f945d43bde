"""Try a target with inputs, each within limits, and keep the inputs that it does not stand."""

import contextlib
import hashlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import InMemoryExampleDatabase

from tests.fuzz.readers import Target

CORPUS = Path(__file__).parent / "corpus"
LONGEST_S = 10.0
"""Seconds that an input may take."""
MOST_BYTES = 1 << 30
"""Bytes of memory that inputs may take, beyond what the process has at its start."""


class TooSlow(Exception):
    """An input takes longer than it may."""


def kept_inputs(name: str) -> list[Path]:
    """Inputs that a target failed on before it was mended."""
    return sorted((CORPUS / name).glob("*"))


def feed(target: Target, examples: int, first: int = 0) -> None:
    """Read so many inputs, drawn from a seed.

    Raises:
        Exception: what the target raised for the smallest failing input, which is kept in the corpus.
    """
    failing: list[bytes] = []

    @seed(first)
    @settings(
        max_examples=examples,
        deadline=None,
        database=InMemoryExampleDatabase(),
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(content=target.inputs)
    def read(content: bytes) -> None:
        try:
            with within_limits():
                target.read(content)
        except BaseException:
            failing.append(content)
            raise

    try:
        read()
    except BaseException:
        if failing:
            _keep(target.name, failing[-1])
        raise


@contextlib.contextmanager
def within_limits(seconds: float = LONGEST_S) -> Iterator[None]:
    """Context whose body is ended by an exception after so many seconds."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory() -> None:
    """Let this process have a GiB more than it has now; what needs more gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _keep(name: str, content: bytes) -> None:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)

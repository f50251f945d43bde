"""The harm of a soak: faults chosen by a seed, done to services, workers, database and disk."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.service.soak.processes import SlowFsync, WorkerProcess
from benchmarks.service.soak.small_disk import SmallDisk
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica import Replica

LEASE_S = 4.0


@dataclass
class Site:
    """What is harmed."""

    services: list[Replica]
    workers: list[WorkerProcess]
    server: PostgresServer | None
    """None: SQLite."""
    disk: SmallDisk | None
    """Disk of the database; None: it is not filled."""
    slow_fsync: SlowFsync
    chooser: random.Random
    frozen: dict[str, float] = field(default_factory=dict)
    """Time by `time.monotonic()` until which a service is frozen, by address."""

    def recover(self) -> None:
        """Let frozen services go on whose time is up, and start what has ended."""
        if self.server is not None and not self.server.is_running():
            # A full disk ends it, and it does not recover before there is space.
            self.server.start()
        for service in self.services:
            if self.frozen.get(service.url, 0.0) < time.monotonic():
                service.send(signal.SIGCONT)
            # One that came up while the database was away has ended with a message, as it should.
            if not service.is_alive():
                service.start()


def kill_service(site: Site) -> None:
    """Kill a replica: two thirds by SIGKILL, one third by SIGTERM."""
    service = site.chooser.choice(site.services)
    service.kill(site.chooser.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    time.sleep(site.chooser.uniform(0, 2))
    service.start()


def freeze_service(site: Site) -> None:
    """Freeze a replica for longer than a lease."""
    service = site.chooser.choice(site.services)
    service.send(signal.SIGSTOP)
    site.frozen[service.url] = time.monotonic() + site.chooser.uniform(1.0, 3.0) * LEASE_S


def kill_worker(site: Site) -> None:
    """Kill a worker."""
    worker = site.chooser.choice(site.workers)
    worker.kill()
    worker.start()


def crash_database(site: Site) -> None:
    """Shut Postgres down without a checkpoint."""
    assert site.server is not None
    site.server.crash()
    time.sleep(site.chooser.uniform(0, 3))
    site.server.start()


def hang_database(site: Site) -> None:
    """Freeze Postgres."""
    assert site.server is not None
    site.server.send_signal(signal.SIGSTOP)
    time.sleep(site.chooser.uniform(1, 2 * LEASE_S))
    site.server.send_signal(signal.SIGCONT)


def fill_disk(site: Site) -> None:
    """Leave the database no space for some seconds."""
    assert site.disk is not None
    site.disk.fill()
    time.sleep(site.chooser.uniform(1, LEASE_S))
    site.disk.free()


def slow_down_fsync(site: Site) -> None:
    """Make every fsync take 0.4 s for some seconds."""
    site.slow_fsync.begin()
    time.sleep(site.chooser.uniform(2, 2 * LEASE_S))
    site.slow_fsync.end()


_FAULTS: dict[Callable[[Site], None], int] = {
    kill_service: 4,
    kill_worker: 5,
    freeze_service: 3,
    crash_database: 1,
    hang_database: 1,
    fill_disk: 1,
    slow_down_fsync: 2,
}
"""Faults, with their relative frequencies."""


def harm_for(site: Site, seconds: float, between: Callable[[], None]) -> Counter[str]:
    """Do harm for so long; `between` is called before each fault. Returns the number of each fault."""
    possible = {fault: weight for fault, weight in _FAULTS.items() if _is_possible(fault, site)}
    done = Counter[str]()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        between()
        time.sleep(site.chooser.uniform(0.5, 3.0))
        fault = site.chooser.choices(list(possible), weights=list(possible.values()))[0]
        fault(site)
        done[fault.__name__.replace("_", " ")] += 1
        site.recover()
    site.frozen.clear()
    site.recover()
    return done


def _is_possible(fault: Callable[[Site], None], site: Site) -> bool:
    if fault in (crash_database, hang_database):
        return site.server is not None
    return fault is not fill_disk or site.disk is not None

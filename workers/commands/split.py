"""Option `--split`: starts several workers on this machine as child processes, which end when this process ends."""

import argparse
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardtune.api_schemas.access.credentials import FILE_VARIABLE, KEY_VARIABLE, KeySource
from shardtune.workers.clock import now_s
from shardtune.workers.commands.exit_codes import BAD_INPUT, COULD_NOT_WORK, DONE
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.launchers.processes import PYTHON, start_child
from shardtune.workers.machine import device_lock, host_facts
from shardtune.workers.machine.inventory import find_gpus, ranks_of
from shardtune.workers.partitions import start_line
from shardtune.workers.partitions.divide import Cores, Division, divide

_LOOK_S = 0.5
_ENDING_S = 25.0
"""Seconds that the workers may take to end their ranks and release their runs."""

log = logging.getLogger(__name__)


def run(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Start the workers one by one, and let them request work once all have measured their hardware. All are ended when
    a signal arrives or one of them fails. Workers that have been idle for too long end one by one."""
    Allowed.of(settings.allowed_models, settings.allowed_scripts)
    interrupt = Interrupt().install()
    gpus = find_gpus().for_ranks(settings.ranks)
    usable = host_facts.cores_in_order(os.sched_getaffinity(0))
    cores = Cores(usable, host_facts.numa_nodes(usable))
    divisions = divide(host_facts.host_id(), gpus, ranks_of(gpus, settings.ranks), settings.split, cores)
    log.info("%d workers divide this machine: %s", len(divisions), ", ".join(division.name for division in divisions))
    # The lock keeps other agents out; the workers themselves lock devices run by run.
    with device_lock.hold_locks(settings.work_dir, gpus.uuids), contextlib.ExitStack() as stack:
        workers: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(_end, workers)
        for division in divisions:
            worker = workers[division.name] = _start(settings, division, options.arguments, options.keys)
            assert worker.stdout is not None
            # One by one, since each measures the machine at its start.
            if not start_line.receives(worker.stdout, start_line.READY, lambda: bool(interrupt)):
                return DONE if interrupt else _code(division.name, worker)
        for worker in workers.values():
            assert worker.stdin is not None
            with contextlib.suppress(OSError):  # it has ended, which the loop below notices
                worker.stdin.write(start_line.GO)
                worker.stdin.flush()
        return _watch(workers, interrupt, may_end=settings.exit_when_idle_minutes is not None)


def _watch(workers: Mapping[str, "subprocess.Popen[bytes]"], interrupt: Interrupt, *, may_end: bool) -> int:
    """Wait until all workers have ended, one has failed, or a signal arrives; returns the command's exit code.

    `may_end`: whether workers may end by themselves, because they are idle or the service does not answer for too long.
    If so, a worker that trains or has a result to deliver continues when another one fails; the exit code is that of
    the first worker that failed.
    """
    while not interrupt:
        codes = {name: worker.poll() for name, worker in workers.items()}
        ended = [name for name, code in codes.items() if code is not None]
        failed = next((name for name in ended if codes[name] != DONE or not may_end), None)
        if failed is not None and (not may_end or len(ended) == len(codes)):
            return _code(failed, workers[failed])
        if len(ended) == len(codes):
            break
        time.sleep(_LOOK_S)
    return DONE


def _start(
    settings: WorkerSettings, division: Division, arguments: Sequence[str], keys: KeySource
) -> subprocess.Popen[bytes]:
    """Start a worker process with the options of this process, but with a part of the machine of its own."""
    work_dir = settings.work_dir / division.name
    # Empty, or SHARDTUNE_WORKER_SPLIT in the inherited environment would divide the part again.
    own_options = ["--split=", "--work-dir", str(work_dir), "--ranks", str(division.ranks)]
    own_options += ["--name", worker_name(settings, division)]
    environment = {**os.environ, "SHARDTUNE_WORKER_HOST_PARTITION": division.partition.model_dump_json(), **_key(keys)}
    if division.gpu_uuids:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(division.gpu_uuids)
    with _bound_to(division.cores):
        return start_child(
            [*PYTHON, "-m", "shardtune.workers", *arguments, *own_options],
            environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


def worker_name(settings: WorkerSettings, division: Division) -> str:
    """Name under which one of this machine's workers registers with the service. The name stays the same after a
    restart."""
    end = f"/{division.name}"
    return settings.pool_name[-(200 - len(end)) :] + end


def _key(keys: KeySource) -> dict[str, str]:
    """Environment variables that pass the API key on to a worker: this process has removed the key from its
    environment, and each worker removes its own copy."""
    if keys.file is not None:
        return {FILE_VARIABLE: str(Path(keys.file).resolve())}
    return {} if keys.key is None else {KEY_VARIABLE: keys.key}


@contextlib.contextmanager
def _bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Context in which started processes, and their children, are bound to the given cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _code(name: str, worker: subprocess.Popen[bytes]) -> int:
    """Exit code of the command that runs several workers on this machine, if it ends because the given worker has
    ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(_ENDING_S)
    log.error("worker %s ended with exit code %s; no worker is left running", name, worker.poll())
    return BAD_INPUT if worker.poll() == BAD_INPUT else COULD_NOT_WORK


def _end(workers: dict[str, subprocess.Popen[bytes]]) -> None:
    for worker in workers.values():
        worker.terminate()
    until_s = now_s() + _ENDING_S
    for worker in workers.values():
        try:
            worker.wait(max(0.0, until_s - now_s()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

"""The fork server's protocol, and that no rank outlives whoever started it."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.cpp_extension import _get_build_directory

from shardtune.workers import leftovers, processor
from shardtune.workers.launch import Launch
from shardtune.workers.machine.inventory import Libraries
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.fork_server import forking
from shardtune.workers.rank.process import cpu_adam
from tests.rank.helpers.fork_server_process import HostProcess, launch_order
from tests.support.processes import preloaded_forks
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

ENDLESS = tiny_task({"kind": "ddp"}, parity_steps=2, min_windows=100_000, max_windows=100_000)


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[HostProcess]:
    host = HostProcess.start(tmp_path)
    yield host
    if host.process.is_alive():
        host.close()


def launch(host: HostProcess) -> tuple[Path, list[psutil.Process]]:
    """Start a trial that does not end by itself, and wait until it trains."""
    folder = host.prepare(ENDLESS)
    host.launch(folder, 2)
    ranks = [psutil.Process(pid) for pid in host.event()["pids"]]
    wait_for(lambda: (folder / "progress.json").exists() and "measuring" in (folder / "progress.json").read_text(), 60)
    return folder, ranks


def wait_for(condition: object, seconds: float) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def rank_alone(folder: Path) -> None:
    """Be `python -m shardtune.workers.rank folder` in a session of its own."""
    os.setsid()
    sys.argv = ["rank", str(folder)]
    runpy.run_module("shardtune.workers.rank", run_name="__main__", alter_sys=True)


def probe(act: str) -> None:
    """Print how a look went that does as `act` says."""
    looks = {"cannot": lambda: {}["torch"], "hangs": lambda: time.sleep(1000), "waits": lambda: time.sleep(1000)}
    try:
        forking.probe(looks[act], patience_s={"hangs": 1}.get(act, 1000))
    except forking.CannotFork as error:
        print(error)


def test_the_host_is_ready_and_may_fork(host: HostProcess) -> None:
    assert host.ready["event"] == "ready" and host.ready["unsafe"] is None, host.ready
    libraries = Libraries.model_validate(host.ready["libraries"])
    assert libraries.torch == torch.__version__ and "llama" in libraries.causal_lm_types


@pytest.mark.parametrize("act", ["cannot", "hangs"])
def test_a_look_that_cannot_be_forked_ends_in_time_with_the_reason(tmp_path: Path, act: str) -> None:
    output = tmp_path / "printed"
    preloaded_forks.fork(probe, act, output=output).join()
    assert {"cannot": "(exit code 1): KeyError: 'torch'", "hangs": "hung for 1 s"}[
        act
    ] in output.read_text().splitlines()[-1]


def test_a_look_does_not_outlive_a_killed_host(tmp_path: Path) -> None:
    owner = preloaded_forks.fork(probe, "waits", output=tmp_path / "printed")
    wait_for(lambda: psutil.Process(owner.pid).children(), 60)
    (look,) = psutil.Process(owner.pid).children()
    owner.kill()
    owner.join()
    wait_for(lambda: not look.is_running() or look.status() == psutil.STATUS_ZOMBIE, 5)


def test_one_launch_at_a_time_and_a_kill_ends_its_ranks_and_the_host_goes_on(host: HostProcess) -> None:
    folder, ranks = launch(host)
    host.launch(host.prepare(ENDLESS), 2)
    rejection = host.event()
    assert rejection["event"] == "rejected" and str(folder) in rejection["reason"]
    host.order({"kill": str(folder)})
    events = [host.event() for _ in ranks]
    assert {event["rank"]: event["code"] for event in events} == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert host.run(tiny_task({"kind": "ddp"}, parity_steps=2))[0].status == "complete"


def test_a_folder_without_a_task_is_rejected(host: HostProcess, tmp_path: Path) -> None:
    host.launch(tmp_path, 2)
    assert host.event()["event"] == "rejected"


def test_the_end_of_input_ends_ranks_and_host(own_host: HostProcess) -> None:
    _, ranks = launch(own_host)
    own_host.close()
    wait_for(lambda: not any(rank.is_running() for rank in ranks), 5)


def test_no_rank_outlives_a_killed_host(own_host: HostProcess) -> None:
    _, ranks = launch(own_host)
    own_host.process.kill()
    own_host.process.join()
    wait_for(lambda: not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks), 5)


def test_no_rank_outlives_a_killed_parent_of_the_host(tmp_path: Path) -> None:
    # The parent stands for the agent: it starts a host, tells its pid, and is killed.
    program = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'shardtune.workers.rank.fork_server'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "p.stdout.readline()\n"
        f"p.stdin.write(b'{json.dumps(launch_order(tmp_path, Launch.of(2)))}\\n'); p.stdin.flush()\n"
        "print(p.stdout.readline().decode(), flush=True)\n"
        "p.stdout.readline()\n"
    )
    (tmp_path / "task.json").write_text(ENDLESS.model_dump_json())
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline())]
        pids += json.loads(parent.stdout.readline())["pids"]
        processes = [psutil.Process(pid) for pid in pids]
        parent.kill()
    wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes), 5)


def test_ranks_are_gone_when_their_deadline_has_passed(host: HostProcess) -> None:
    folder, ranks = launch(host)
    (folder / "deadline").write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME) + 1))
    # Neither the host's nor the rank's own watch needs anybody else: one rank cannot move at all.
    ranks[0].suspend()
    wait_for(lambda: not any(rank.is_running() for rank in ranks), 10)
    assert {host.event()["event"] for _ in ranks} == {"exited"}


def test_ranks_without_a_host_hold_their_deadline_themselves(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text(tiny_task({"kind": "ddp"}, ranks=1, max_windows=100_000).model_dump_json())
    (tmp_path / "deadline").write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME) + 1))
    rank = preloaded_forks.fork(rank_alone, tmp_path, output=tmp_path / "printed")
    rank.join(60)
    assert rank.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("endless", ["-dumpfullversion", "-c"], ids=["version", "compile"])
def test_the_builder_takes_its_compilers_along_when_its_parent_is_killed(endless: str, tmp_path: Path) -> None:
    # A compiler that never ends: as a child of the builder, or of ninja in a process group of its own. The cache is new.
    compiler = tmp_path / "g++"
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" {endless} "*) echo $$ >> {tmp_path}/pids; exec sleep 600;; esac\n'
        f'exec {shutil.which("c++")} "$@"\n'
    )
    compiler.chmod(0o755)
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CXX": str(compiler)}
    program = (
        "import subprocess, sys, os\n"
        "os.environ['SHARDTUNE_PARENT_PID'] = str(os.getpid())\n"
        "subprocess.run([sys.executable, '-m', 'shardtune.workers.rank.process.cpu_adam'], start_new_session=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as parent:
        wait_for(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"), 60)
        (builder,) = psutil.Process(parent.pid).children()
        family = [builder, *builder.children(recursive=True)]
        assert int((tmp_path / "pids").read_text().split()[0]) in [process.pid for process in family]
        parent.kill()
    wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family), 5)


def test_a_cache_that_cannot_be_made_has_no_operator_and_the_builder_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "cache"))
    assert not cpu_adam.is_built()
    with pytest.raises(SetupError, match=r"TORCH_EXTENSIONS_DIR \(.*/file/cache\): .*; name a folder"):
        cpu_adam.build()


def test_each_kind_of_processor_and_version_has_an_operator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiled with -march=native: on a home folder that unlike hosts share, one would run the other's instructions.
    names = {cpu_adam.extension_name()}
    for owner, name in ((processor, "digest"), (cpu_adam, "_built_for")):
        monkeypatch.setattr(owner, name, lambda: "another")
        names.add(cpu_adam.extension_name.__wrapped__())
    assert len(names) == 3


def test_a_build_removes_what_was_built_for_others_and_not_loaded_for_long(tmp_path: Path) -> None:
    for name in ("cpu_adam_old", "cpu_adam_used", "another_old", cpu_adam.extension_name()):
        (tmp_path / name).mkdir()
        for path in (tmp_path / name / cpu_adam._MARKER, tmp_path / name):
            path.touch()
            os.utime(path, (0, 0))
    (tmp_path / "cpu_adam_users").mkdir()
    os.utime(tmp_path / "cpu_adam_users", (0, 0))
    leftovers.mark_used(tmp_path / "cpu_adam_used")
    cpu_adam._remove_unused(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"cpu_adam_used", "another_old", cpu_adam.extension_name(), "cpu_adam_users"}


def test_an_offload_trial_does_not_wait_for_the_lock_that_a_killed_one_left(host: HostProcess) -> None:
    offload = {"kind": "zero", "stage": 1, "offload_optimizer": {"device": "cpu"}}
    assert host.run(tiny_task(offload, parity_steps=2))[0].status == "complete", "and now the operator is built"
    lock = Path(_get_build_directory(cpu_adam.extension_name(), verbose=False)) / "lock"
    lock.touch()
    try:
        assert host.run(tiny_task(offload, parity_steps=2))[0].status == "complete"
    finally:
        lock.unlink(missing_ok=True)

"""Run `shardtune tune`: start the service and a worker, run the study, and write the files of its answer."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardtune.api_schemas.formatting import counted, memory
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.cli import connection
from shardtune.service.cli.errors import InputError, Interrupted, NothingFeasible, PlatformFailure
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import worker_launcher
from shardtune.service.cli.signals import raise_on_signals
from shardtune.service.cli.terminal import PrintableConsole
from shardtune.service.cli.tune import study_input
from shardtune.service.cli.tune.offloads import may_offload_optimizer
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.process.own_command import as_called, command_words

if TYPE_CHECKING:
    from shardtune.service import client as api
    from shardtune.service.cli import local_stack
    from shardtune.service.cli.tune import (
        answer,
        continuation,
        cost,
        earlier_studies,
        early_checks,
        live_table,
        progress_lines,
    )
else:
    api = LazyModule("shardtune.service.client")
    early_checks, live_table, progress_lines = (
        LazyModule("shardtune.service.cli.tune.early_checks"),
        LazyModule("shardtune.service.cli.tune.live_table"),
        LazyModule("shardtune.service.cli.tune.progress_lines"),
    )
    cost = LazyModule("shardtune.service.cli.tune.cost")
    local_stack, answer = (
        LazyModule("shardtune.service.cli.local_stack"),
        LazyModule("shardtune.service.cli.tune.answer"),
    )
    continuation, earlier_studies = (
        LazyModule("shardtune.service.cli.tune.continuation"),
        LazyModule("shardtune.service.cli.tune.earlier_studies"),
    )

_POLL_S = 0.5
_PROBE_BYTES = 256 * 1024
"""Number of bytes that are written to `--out` as a test before any trial runs; the files of an answer are smaller."""


@dataclass
class _Progress:
    """Progress of `tune`, which decides the message after Ctrl-C."""

    has_begun: bool = False
    """Whether the service has stored the study, or its additional paired runs."""


def print_progress(line: str) -> None:
    """Print one line of progress on stderr."""
    sys.stderr.write(as_called(line) + "\n")
    sys.stderr.flush()


def tune(options: TuneOptions) -> None:
    """Run or resume a study and print its answer.

    Raises:
        CliError: a subclass, for every end but success.
    """
    if options.resume or options.add_pairs:
        continuation.check_unchanged(options)
        continuation.check_state_dir(options)
        spec = None
    else:
        spec = study_input.read(options, print_progress)
        study_input.check(spec, options)
        if options.cost:
            cost.print_cost(spec, options)
            return
        early_checks.check_hardware(spec, options.hosts)
    check_out_is_writable(options.out)
    with local_stack.state_directory(options.state_dir) as state_dir:
        run(state_dir, spec, options)


def run(state_dir: Path, spec: StudyRequest | None, options: TuneOptions) -> Study:
    """Run the study in a state directory that this command has locked, print the study's answer, and return the study.

    If `spec` is None, the options name the stored study to continue.

    Raises:
        CliError: a subclass, for every end but success.
    """
    progress = _Progress()
    with raise_on_signals():
        try:
            with connection.service_errors(), local_stack.local_service(state_dir) as client:
                return _run_study(client, state_dir, spec, options, progress)
        except KeyboardInterrupt:
            raise Interrupted(*options.after_interrupt(has_begun=progress.has_begun)) from None


def check_out_is_writable(out: Path) -> None:
    """Reject an output folder that cannot be written, before trials run for hours.

    Raises:
        InputError: names the folder and the reason.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A real write: a full or read-only file system passes a check of permissions, and a full one takes an empty file.
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise InputError(f"--out ({out}) cannot be written: {error.strerror}; choose another directory") from None


def _run_study(
    client: api.ServiceClient, state_dir: Path, spec: StudyRequest | None, options: TuneOptions, progress: _Progress
) -> Study:
    study = continuation.find(client, options) if spec is None else _earlier_study(client, spec, options)
    # With --rungs the worker is what the options say: only then it shows whether a stored study compares.
    stored = None if options.rungs else study
    ranks, memory_gib = _worker_options(stored.cluster if stored else spec.cluster if spec else "local", options)
    expected = study.spec if study else spec
    assert expected is not None
    early_checks.check_own_code(expected.model, options.allowed)
    further_options = (*options.allowed, *host_options(study.cluster if study else expected.cluster, options.hosts))
    if options.hosts and not may_offload_optimizer(expected):
        further_options += ("--no-build-operators",)
    worker = local_stack.LocalWorker(client, state_dir, ranks, memory_gib, further_options)
    continuation.pause_others(client, study, is_one_of_several=bool(options.rungs))
    try:
        # A first start may measure the machine, or wait for its GPUs: the address is printed before, not after.
        print_progress(
            f"pages at {client.base_url}; starting a worker {'over the hosts' if options.hosts else 'on this machine'}"
        )
        worker.start(print_progress)
        if study is not None and options.rungs:
            study = earlier_studies.if_comparable(client, study, worker.name, options, print_progress)
            if study is not None and not study.state.is_open:
                answer.write_all_files(client, study, options)
                return study
        elif study is not None:
            continuation.check_worker(client, study, worker.name, options)
        study = continuation.begin_or_continue(client, study, spec, options, print_progress)
        progress.has_begun = True
        print_progress(f"study {study.study_id}: {_describe_training(study)} on {_describe_cluster(study.cluster)}")
        later = shlex.join([*command_words(), "serve", "--state-dir", str(options.state_dir)])
        print_progress(f"watch it at {client.base_url}/studies/{study.study_id} (later: {later})")
        for line in study.warnings:
            print_progress(f"note: {line}")
        study = _follow_study(client, worker, study.study_id)
    finally:
        worker.stop()
    if study.result is None or study.state is StudyState.FAILED:
        raise error_without_result(study, client.trials(study.study_id))
    answer.write_and_print(client, study, options)
    return study


def _earlier_study(client: api.ServiceClient, spec: StudyRequest, options: TuneOptions) -> Study | None:
    """Find the stored study that the command continues; None if it creates a new study."""
    return continuation.earlier_confirmation(client, spec) or earlier_studies.find(client, spec, options)


def _describe_training(study: Study) -> str:
    """Describe the model in words. If not all weights are trained on samples of one length, also describe the adapter
    and the lengths of the samples."""
    workload = study.spec.workload
    adapter = "" if workload.adapter is None else f", {workload.adapter.describe()}"
    return f"{study.spec.model.name}{adapter}" + ("" if workload.data is None else f", {workload.data.describe()},")


def _worker_options(cluster: Cluster | str, options: TuneOptions) -> tuple[int | None, float | None]:
    """Return the number of ranks and the memory per rank in GiB that the worker must offer. None leaves a value to the
    worker, which detects its GPUs."""
    if isinstance(cluster, Cluster):
        return (cluster.gpus_per_node, cluster.memory_gib) if cluster.device == "cpu" else (options.ranks, None)
    return options.ranks, options.memory_gib


def host_options(cluster: Cluster | str, options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of the worker's launcher. If they state no number of nodes, add the study's."""
    # A launcher of the environment takes it, too: all hosts of a Slurm job may be fewer than the study's.
    if worker_launcher(options) != "local" and "--nodes" not in options and isinstance(cluster, Cluster):
        return (*options, "--nodes", str(cluster.nodes))
    return options


def _describe_cluster(cluster: Cluster) -> str:
    count = cluster.gpus_per_node
    ranks = counted(count, "CPU rank") if cluster.device == "cpu" else f"{count} × {cluster.gpu}"
    nodes = f"{cluster.nodes} nodes of " if cluster.nodes > 1 else ""
    return f"{nodes}{ranks}, {memory(cluster.memory_gib)} each"


def _follow_study(client: api.ServiceClient, worker: local_stack.LocalWorker, study_id: str) -> Study:
    """Show the progress of a study until it ends, and return the study."""
    console = PrintableConsole(stderr=True)
    started = time.monotonic()
    with live_table.LiveView(console) if console.is_terminal else progress_lines.LineView(print_progress) as view:
        while True:
            study, trials, rejections = _fetch_progress(client, study_id)
            view.show(study, trials, rejections, time.monotonic() - started)
            if not study.state.is_open:
                return study
            if (news := worker.news()) is not None:
                view.say(news)
            # Only while the study is open: a worker that dies as the study ends is not worth a restart.
            if (ending := worker.keep_alive()) is not None:
                view.say(f"the worker ended unexpectedly ({ending}) and was restarted; the study continues")
            time.sleep(_POLL_S)


def _fetch_progress(client: api.ServiceClient, study_id: str) -> tuple[Study, list[Trial], list[Rejection]]:
    try:
        return client.study(study_id), client.trials(study_id), client.rejections(study_id)
    except (api.ServiceUnreachable, api.ServiceRejected) as error:
        raise PlatformFailure(
            f"the service stopped answering: {error}; see logs/service.log in the state directory"
        ) from None


def error_without_result(study: Study, trials: Sequence[Trial]) -> NothingFeasible | PlatformFailure:
    """Return the error of a study without a new result: no feasible configuration, or a platform failure."""
    reason = study.reason or f"the study is {study.state.value}"
    reasons = sorted(
        {f"  trial {t.number}, {t.description}: {t.failure.kind}: {t.failure.message}" for t in trials if t.failure}
    )
    if study.result is not None:
        return PlatformFailure(f"extending the study failed: {reason}; its earlier answer stays", *reasons)
    measured = study.trials.get("complete", 0) + study.trials.get("infeasible", 0) + study.rejected
    # With a failed trial or a cancellation, "nothing fits" would be a guess: exit code 3 is for a searched space only.
    if measured and not study.trials.get("failed", 0) and study.state is not StudyState.CANCELLED:
        return NothingFeasible(reason, *reasons)
    return PlatformFailure(f"the study ended without a result: {reason}", *reasons)

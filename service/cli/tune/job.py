"""`shardtune tune`: service, worker and study on this machine, from the question to the files of the answer."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study, StudyRequest, StudyState
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError, Interrupted, NothingFeasible, PlatformFailure
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.processes import detect_inventory
from shardtune.service.cli.signals import signals_interrupt
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.cli.tune.progress_lines import LineView

if TYPE_CHECKING:
    from shardtune.service import client as api
    from shardtune.service.cli import local_stack
    from shardtune.service.cli.tune import answer, early_checks, live_table
else:
    api = LazyModule("shardtune.service.client")
    early_checks, live_table = (
        LazyModule("shardtune.service.cli.tune.early_checks"),
        LazyModule("shardtune.service.cli.tune.live_table"),
    )
    local_stack, answer = (
        LazyModule("shardtune.service.cli.local_stack"),
        LazyModule("shardtune.service.cli.tune.answer"),
    )

_POLL_S = 0.5


@dataclass
class _Progress:
    """How far the command has come."""

    has_begun: bool = False
    """The service has the study, or its pairs."""


def say(line: str) -> None:
    """One line of progress on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def tune(options: TuneOptions) -> None:
    """Run or resume a study and print its answer.

    Raises:
        CliError: one of its kinds, for every end but success.
    """
    if options.resume or options.add_pairs:
        flag = "--resume" if options.resume else "--add-pairs"
        if options.study is not None or options.max_trials is not None:
            raise InputError(f"{flag} goes on with a stored study as it is; give no file and no --max-trials with it")
        spec = None
    else:
        spec = _read(options)
        early_checks.check_own_code(spec.model, options.allowed)
        if not options.hosts:
            early_checks.check(spec, options.ranks)
    _check_out(options.out)
    progress = _Progress()
    with local_stack.state_directory(options.state_dir) as state_dir, signals_interrupt():
        try:
            with local_stack.local_service(state_dir) as client:
                _run(client, state_dir, spec, options, progress)
        except KeyboardInterrupt:
            raise Interrupted(*options.after_interrupt(has_begun=progress.has_begun)) from None


def _read(options: TuneOptions) -> StudyRequest:
    if options.study is None:
        raise InputError(
            "STUDY (missing): give a study file or a model's config.json, such as examples/llama-tiny.json"
        )
    values = study_file.read_json_object(options.study)
    if study_file.is_bare_config(values):
        spec, words = study_file.study_of_config(values, detect_inventory(options.ranks, options.hosts))
        say(words)
    else:
        spec = study_file.study_spec(values, options.study.parent)
    spec, replaced = study_file.with_options(
        spec, ranks=options.ranks, max_trials=options.max_trials, memory_gib=options.memory_gib
    )
    for line in replaced:
        say(line)
    return spec


def _check_out(out: Path) -> None:
    """Now and not after an hour of trials."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out ({out}) cannot be written: {error.strerror}; choose another directory") from None


def _run(
    client: api.ServiceClient, state_dir: Path, spec: StudyRequest | None, options: TuneOptions, progress: _Progress
) -> None:
    study = _stored(client, options) if spec is None else None
    ranks, memory_gib = _worker_options(study.cluster if study else spec.cluster if spec else "local", options)
    asked = study.spec if study else spec
    assert asked is not None
    early_checks.check_own_code(asked.model, options.allowed)
    offloads = "zero" in asked.space.backends
    more = (*options.allowed, *_hosts(study.cluster if study else asked.cluster, options.hosts))
    worker = local_stack.LocalWorker(client, state_dir, ranks, memory_gib, more, may_offload=offloads)
    _only(client, study)
    try:
        # A first start may build operators for minutes: whoever opens the page meanwhile sees the study appear.
        say(f"pages at {client.base_url}; starting a worker {'over the hosts' if options.hosts else 'on this machine'}")
        worker.start(say)
        if study is None:
            assert spec is not None
            study = _accepted(partial(client.create_study, spec, options.study_id))
        elif options.add_pairs:
            study = _accepted(partial(client.extend, study.study_id, Extension(add_pairs=options.add_pairs)))
        progress.has_begun = True
        say(f"study {study.study_id}: {study.spec.model.name} on {_cluster_words(study.cluster)}")
        later = shlex.join(["shardtune", "serve", "--state-dir", str(options.state_dir)])
        say(f"watch it at {client.base_url}/studies/{study.study_id} (later: {later})")
        for line in study.warnings:
            say(f"note: {line}")
        study = _watch(client, worker, study.study_id)
    finally:
        worker.stop()
    if study.result is None:
        raise without_result(study, client.trials(study.study_id))
    answer.give(client, study, options)


def _only(client: api.ServiceClient, study: Study | None) -> None:
    """Let the worker serve this study alone: the service serves older ones first. A shared database is left as it is."""
    if local_stack.DATABASE_VARIABLE not in os.environ:
        for other in client.studies():
            if other.state is StudyState.RUNNING and (study is None or other.study_id != study.study_id):
                client.pause(other.study_id, paused=True)
                say(f"study {other.study_id} is unfinished and was paused; --resume goes on with the newest")
    if study is not None and study.state is StudyState.PAUSED:
        client.pause(study.study_id, paused=False)


def _accepted(ask: Callable[[], Study]) -> Study:
    """The study that the service made or changed."""
    try:
        return ask()
    except api.ServiceRejected as rejected:
        if rejected.is_input_error:
            raise InputError(*rejected.lines()) from None
        raise PlatformFailure(*rejected.lines()) from None


def _worker_options(cluster: Cluster | str, options: TuneOptions) -> tuple[int | None, float | None]:
    """What the worker must be told so that it offers the cluster: a GPU says itself what it is."""
    if isinstance(cluster, Cluster):
        return (cluster.gpus_per_node, cluster.memory_gib) if cluster.device == "cpu" else (options.ranks, None)
    return options.ranks, options.memory_gib


def _hosts(cluster: Cluster | str, given: tuple[str, ...]) -> tuple[str, ...]:
    """As many as the study says, where the command line does not."""
    if given and "--nodes" not in given and isinstance(cluster, Cluster):
        return (*given, "--nodes", str(cluster.nodes))
    return given


def _cluster_words(cluster: Cluster) -> str:
    kind = "CPU ranks" if cluster.device == "cpu" else f"× {cluster.gpu}"
    nodes = f"{cluster.nodes} nodes of " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} {kind}, {memory(cluster.memory_gib)} each"


def _stored(client: api.ServiceClient, options: TuneOptions) -> Study:
    """What `--resume` or `--add-pairs` goes on with: the newest study that has not ended, or that has an answer."""
    flag, kind = ("--resume", "unfinished") if options.resume else ("--add-pairs", "finished")
    found = [study for study in client.studies() if (study.state.is_open if options.resume else study.result)]
    if not found:
        raise InputError(
            f"{flag}: no {kind} study in --state-dir ({options.state_dir}); start one with `shardtune tune FILE`"
        )
    return max(found, key=lambda study: study.created_at)


def _watch(client: api.ServiceClient, worker: local_stack.LocalWorker, study_id: str) -> Study:
    """Show the study until it ends."""
    console = Console(stderr=True)
    started = time.monotonic()
    with live_table.LiveView(console) if console.is_terminal else LineView(say) as view:
        while True:
            study, trials, rejections = _look(client, study_id)
            view.show(study, trials, rejections, time.monotonic() - started)
            if not study.state.is_open:
                return study
            if (news := worker.news()) is not None:
                view.say(news)
            if worker.keep_alive():
                view.say("the worker ended unexpectedly and was started again; the study goes on")
            time.sleep(_POLL_S)


def _look(client: api.ServiceClient, study_id: str) -> tuple[Study, list[Trial], list[Rejection]]:
    try:
        return client.study(study_id), client.trials(study_id), client.rejections(study_id)
    except (api.ServiceUnreachable, api.ServiceRejected) as error:
        raise PlatformFailure(
            f"the service stopped answering: {error}; see logs/service.log in the state directory"
        ) from None


def without_result(study: Study, trials: Sequence[Trial]) -> NothingFeasible | PlatformFailure:
    """The error of a study that ended without a result: its own end, or the platform's fault."""
    why = study.reason or f"the study is {study.state.value}"
    reasons = sorted(
        {f"  trial {t.number}, {t.description}: {t.failure.kind}: {t.failure.message}" for t in trials if t.failure}
    )
    judged = study.trials.get("complete", 0) + study.trials.get("infeasible", 0) + study.rejected
    if judged and not study.trials.get("failed", 0) and study.state is not StudyState.CANCELLED:
        return NothingFeasible(why, *reasons)
    return PlatformFailure(f"the study ended without a result: {why}", *reasons)

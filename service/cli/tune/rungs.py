"""Run `tune --rungs`: the study on each smaller size first, then on all that is there, whose answer projects from all of
them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import MOST_RUNGS
from shardtune.service.cli.errors import CliError, InputError, Interrupted, NothingFeasible
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.signals import raise_on_signals
from shardtune.service.cli.tune import job, study_input
from shardtune.service.cli.tune.options import TuneOptions

if TYPE_CHECKING:
    from shardtune.service.cli import local_stack
    from shardtune.service.cli.tune import cost, early_checks, smaller_studies
else:
    local_stack, cost, early_checks, smaller_studies = (
        LazyModule("shardtune.service.cli.local_stack"),
        LazyModule("shardtune.service.cli.tune.cost"),
        LazyModule("shardtune.service.cli.tune.early_checks"),
        LazyModule("shardtune.service.cli.tune.smaller_studies"),
    )

RunStudy = Callable[[Path, StudyRequest, TuneOptions], Study]
"""Function that runs a study in a state directory, prints its answer and returns it."""


def parse(text: str) -> tuple[int, ...]:
    """Parse the value of `--rungs` (the numbers of nodes or ranks of smaller clusters on which the study runs first),
    and return the numbers, smallest first.

    Raises:
        InputError: the text is no list of different numbers of at least 1, or the list is too long.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 0 < len(word) < 10 and int(word) > 0 for word in words):
        raise InputError(f"--rungs ({text[:100]!r}) must list numbers of nodes or ranks from 1 on, such as 1,2")
    sizes = sorted({int(word) for word in words})
    if len(sizes) < len(words):
        raise InputError(f"--rungs ({text[:100]!r}) names a size twice; name each once")
    if len(sizes) > MOST_RUNGS:
        raise InputError(
            f"--rungs ({text[:100]!r}) names {len(sizes)} sizes, and an answer projects from {MOST_RUNGS} at most; name "
            f"{MOST_RUNGS} or fewer"
        )
    return tuple(sizes)


def check(sizes: Sequence[int], options: TuneOptions) -> None:
    """Reject `--rungs` together with an option that excludes it, or with sizes that are not smaller than the study's
    cluster.

    Raises:
        InputError: names `--rungs`, the other option, and the remedy.
    """
    shown = ",".join(map(str, sizes))
    others = {"--resume": options.resume, "--add-pairs": options.add_pairs}
    for name, is_given in others.items():
        if is_given:
            raise InputError(f"--rungs ({shown}) and {name} exclude each other; leave one out")
    full, unit = (options.nodes, "--nodes") if options.hosts else (options.ranks, "--ranks")
    if full is None:
        raise InputError(
            f"--rungs ({shown}) needs {unit}, the larger number on which the study itself runs, such as {unit} {2 * sizes[-1]}"
        )
    if sizes[-1] >= full:
        raise InputError(f"--rungs ({shown}) must be smaller than {unit} ({full}), on which the study itself runs")


def tune(sizes: Sequence[int], options: TuneOptions, run: RunStudy = job.run) -> None:
    """Run a study on each of the smaller clusters that `--rungs` lists, then on its full cluster, and print the answer
    of the full cluster. With `--cost`, print only what all these studies should take and gain.

    All sizes are checked before the first trial runs, and the state directory stays locked until the last size has
    ended.

    Raises:
        CliError: a subclass, for every end but success; measurements up to then are kept.
    """
    check(sizes, options)
    whole = replace(options, rungs=tuple(sizes))
    steps = _studies(whole)
    if whole.cost:
        cost.print_costs(steps, whole)
        return
    for on_size, _ in steps:
        job.check_out_is_writable(on_size.out)
    with local_stack.state_directory(options.state_dir) as state_dir, raise_on_signals():
        _say(_plan(whole))
        try:
            for number, (on_size, spec) in enumerate(steps, start=1):
                _run(state_dir, number, on_size, spec, run)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(*whole.after_interrupt(has_begun=True)) from None


def _plan(whole: TuneOptions) -> str:
    last = whole.nodes if whole.hosts else whole.ranks
    return (
        f"{len(whole.rungs) + 1} studies in turn, on {', '.join(map(str, whole.rungs))} and {last} {whole.unit}s; the study's "
        "budget bounds each of them, not all together"
    )


def _studies(whole: TuneOptions) -> list[tuple[TuneOptions, StudyRequest]]:
    """Check that the study is possible on every cluster size of `--rungs`, and return the options and the study for
    each size, smallest first.

    Raises:
        InputError: the study is not possible on one of the sizes.
    """
    spec = smaller_studies.with_complete_target(study_input.read(whole, _say), whole)
    study_input.check(spec, whole)
    if whole.hosts and spec.cluster != "local":
        # `tune` leaves a study over hosts to the service, which would reject this size after the smaller ones had run.
        early_checks.check_study(spec, whole.ranks)
    early_checks.check_hardware(spec, whole.hosts)
    steps = []
    for size in whole.rungs:
        on_size = smaller_studies.options_on(size, whole)
        steps.append((on_size, smaller_studies.study_on(size, spec, on_size, _say)))
    return [*steps, (whole, spec)]


def _run(state_dir: Path, number: int, options: TuneOptions, spec: StudyRequest, run: RunStudy) -> None:
    """Run the study on one cluster size of `--rungs`. Unless this is the full size, print the answer to stderr, as
    progress."""
    size = options.rung
    if size is None:
        run(state_dir, spec, options)
        return
    name = f"rung {number} of {len(options.rungs)}"
    shown = counted(size, options.unit)
    _say(f"{name}: {shown}")
    try:
        # stdout holds one answer: that of the whole size.
        with redirect_stdout(sys.stderr):
            study = run(state_dir, spec, options)
    except NothingFeasible as error:
        # A model may fit on more GPUs only; the next size shows it.
        _say(f"nothing was measured on {shown}: {error}")
    except Interrupted:
        raise
    except CliError as error:
        remedy = (
            f"{name} ({shown}) ended the command; finished sizes are kept: the same command goes on with this one, or leave "
            "it out of --rungs"
        )
        raise type(error)(*error.lines, remedy) from None
    else:
        _say(f"{name}: {study.gpu_seconds:.0f} s × ranks in study {study.study_id}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

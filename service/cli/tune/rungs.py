"""Run `tune --rungs`: the study on each smaller size first, then on all that is there, whose answer projects from all of
them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import MOST_RUNGS
from shardtune.service.cli.errors import InputError, NothingFeasible
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.tuner.prediction import catalogue

_FOLDER = "rungs"
"""Folder below `--out` with the files of each smaller size."""


def parse(text: str) -> tuple[int, ...]:
    """Sizes of `--rungs`, smallest first.

    Raises:
        InputError: the text is no list of different numbers from 1 on, or too long.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 0 < len(word) < 10 and int(word) > 0 for word in words):
        raise InputError(f"--rungs ({text[:100]!r}) must list numbers of nodes or ranks from 1 on, such as 1,2")
    sizes = sorted({int(word) for word in words})
    if len(sizes) < len(words):
        raise InputError(f"--rungs ({text[:100]!r}) names a size twice; name each once")
    if len(sizes) > MOST_RUNGS:
        raise InputError(
            f"--rungs ({text[:100]!r}) names {len(sizes)} sizes; an answer projects from {MOST_RUNGS} at most"
        )
    return tuple(sizes)


def check(sizes: Sequence[int], options: TuneOptions) -> None:
    """Reject rungs that do not go with the other options.

    Raises:
        InputError: names both options and the remedy.
    """
    shown = ",".join(map(str, sizes))
    others = {"--resume": options.resume, "--add-pairs": options.add_pairs, "--cost": options.cost}
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


def tune(sizes: Sequence[int], options: TuneOptions, tune_once: Callable[[TuneOptions], None]) -> None:
    """Run the study on each size, then as the other options say, and print the answer of the last.

    `tune_once`: runs one study and prints its answer.

    Raises:
        CliError: a subclass, for every end but success; what was measured is kept.
    """
    check(sizes, options)
    for number, size in enumerate(sizes, start=1):
        unit = "node" if options.hosts else "rank"
        _say(f"rung {number} of {len(sizes)}: {size} {unit}{'' if size == 1 else 's'}")
        # stdout holds one answer: that of the whole size.
        with redirect_stdout(sys.stderr):
            try:
                tune_once(_on_rung(options, size))
            except NothingFeasible as error:
                # A model may fit on more GPUs only; the next size shows it.
                _say(f"nothing was measured on {size} {unit}{'' if size == 1 else 's'}: {error}")
    tune_once(options)


def smaller_study(spec: StudyRequest, options: TuneOptions) -> StudyRequest:
    """Study on a smaller size of the same hosts; unchanged without a rung.

    Raises:
        InputError: the study has no target, so that nothing is projected from what it measures.
    """
    if options.rung is None:
        return spec
    if spec.target is None:
        raise InputError(
            f"--rungs ({options.rung}) needs a target to project to; add --target NODESxGPUS, or target in the study file"
        )
    return spec.model_copy(update={"cluster": _smaller_cluster(spec.cluster, options.rung, bool(options.hosts))})


def _smaller_cluster(cluster: Cluster | str, size: int, over_hosts: bool) -> Cluster | str:
    if isinstance(cluster, Cluster):
        return cluster.model_copy(update={"nodes": size} if over_hosts else {"nodes": 1, "gpus_per_node": size})
    if cluster == "local":
        return cluster
    named = catalogue.parse_cluster(cluster)
    # The short form again: the worker that has these GPUs completes it.
    return f"{size}x{named.gpus_per_node}x{named.gpu}" if over_hosts else f"1x{size}x{named.gpu}"


def _on_rung(options: TuneOptions, size: int) -> TuneOptions:
    smaller = replace(options, rung=size, out=options.out / _FOLDER / str(size), as_json=False)
    if not options.hosts:
        return replace(smaller, ranks=size)
    kept = list(options.hosts)
    if "--nodes" in kept:
        del kept[kept.index("--nodes") : kept.index("--nodes") + 2]
    return replace(smaller, hosts=(*kept, "--nodes", str(size)))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

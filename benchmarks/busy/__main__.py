"""Answers of `shardtune tune` on a busy machine: how many are right, undecided or wrong, and which sentences are false.

python -m benchmarks.busy [--json] [--loads 0,0.7,1.4,2.8] [--runs 5] [--repo DIR] [--folder DIR]

Each run is the command of `make tune`, on the llama-tiny of the examples, beside so many cores of foreign load: steady
in runs with an odd number, in bursts of 8 s in the others. Afterwards, without load, the configurations that the answers
name run beside each other, `--rounds` times, and the product's paired test compares them:

- `right`: the confirmed winner is faster than the answer's baseline, or "not faster" and nothing that the study tried is.
- `wrong`: the confirmed winner is not shown to be faster, or "not faster" and a rival is, by a worthwhile gain. Rivals are
  the answer's candidate, the fastest search run, and the winner of the runs without load where the study tried it.
- `undecided_or_busy`: the answer claims neither, or there is none.

`false_sentences` counts sentences and figures of the answers that the rows of the study's database contradict.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.busy import sentences
from benchmarks.busy.quiet_truth import Claim, Truth, claim_of, measure_truth, reference_of
from benchmarks.busy.tune_runs import Plan, TuneRun, tune_beside
from benchmarks.service.figures import machine
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.service.cli.errors import CliError, InputError
from shardtune.service.cli.signals import raise_on_signals

ROOT = Path(__file__).parents[2]
_MOST_CORES = 64.0


def report(runs: Sequence[TuneRun], claims: Sequence[Claim], truth: Truth) -> dict[str, Any]:
    """Everything `--json` prints, except the machine."""
    details = [_detail(run, claim, truth) for run, claim in zip(runs, claims, strict=True)]
    loads = []
    for load in dict.fromkeys(run.load for run in runs):
        own = [detail for detail in details if detail["load"] == load]
        outcomes = [detail["outcome"] for detail in own]
        counts = {name: outcomes.count(name) for name in ("right", "undecided_or_busy", "wrong")}
        false = sum(len(detail["false_sentences"]) for detail in own)
        loads.append({"load": load, "runs": len(own), **counts, "false_sentences": false})
    return {"loads": loads, "disturbed_truth_runs": truth.disturbed_runs, "details": details}


def _detail(run: TuneRun, claim: Claim, truth: Truth) -> dict[str, Any]:
    statements = sentences.Statements(0, (), ())
    if run.answer is not None and run.rows is not None:
        statements = sentences.check(run.answer, run.rows)
    return {
        "load": run.load,
        "run": run.number,
        "kind": run.kind if run.load else "none",
        "outcome": claim.judge(truth),
        "verdict": claim.verdict,
        "error": run.error,
        "best": claim.best.describe() if claim.best else None,
        "baseline": claim.baseline.describe() if claim.baseline else None,
        "speedup": run.answer["speedup"] if run.answer else None,
        "statements": statements.count,
        "false_sentences": list(statements.false),
        "unread_sentences": list(statements.unread),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Report as text."""
    text_lines = [
        f"load {row['load']:g}: {row['runs']} runs, {row['right']} right, {row['undecided_or_busy']} undecided or busy, "
        f"{row['wrong']} wrong, {row['false_sentences']} false sentences"
        for row in result["loads"]
    ]
    for detail in result["details"]:
        where = f"load {detail['load']:g}, run {detail['run']} ({detail['kind']})"
        text_lines.append(f"{where}: {detail['outcome']}: {detail['verdict'] or detail['error']}: {detail['best']}")
        text_lines += [f"{where}: false: {sentence}" for sentence in detail["false_sentences"]]
    if result["disturbed_truth_runs"]:
        text_lines.append(f"{result['disturbed_truth_runs']} runs on the quiet machine were disturbed: judge with care")
    return [*text_lines, f"{result['processor']}; {json.dumps(result['versions'])}"]


def measure(plan: Plan, loads: Sequence[float], count: int, rounds: int) -> dict[str, Any]:
    """Run the command beside each load, then the configurations of the answers without load.

    Raises:
        PlatformFailure: a configuration that an answer names failed on the quiet machine.
    """
    # Load by load within a round, so that a slow hour of the machine falls on all loads alike.
    runs = [tune_beside(plan, load, number) for number in range(1, count + 1) for load in loads]
    runs.sort(key=lambda run: (loads.index(run.load), run.number))
    reference = reference_of(runs)
    claims = [claim_of(run, reference) for run in runs]
    configs = {config.content_key(): config for claim in claims for config in claim.configs}
    study_file = plan.repository / "examples" / "llama-tiny.json"
    truth = measure_truth(plan.folder, study_file, list(configs.values()), rounds)
    return report(runs, claims, truth) | {"processor": machine()["cpu"], "versions": _versions(plan.repository)}


def _versions(repository: Path) -> dict[str, str]:
    described = subprocess.run(
        ["git", "-C", str(repository), "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True
    )
    packages = {name: version(name) for name in ("torch", "deepspeed")}
    return {"shardtune": described.stdout.strip() or "unknown", "python": platform.python_version(), **packages}


def _cores(text: str) -> tuple[float, ...]:
    """Loads of `--loads`.

    Raises:
        InputError: a load that is no number of cores.
    """
    try:
        loads = tuple(float(part) for part in text.split(","))
    except ValueError:
        loads = ()
    if not loads or not all(0 <= load <= _MOST_CORES for load in loads) or len(set(loads)) < len(loads):
        raise InputError(f"--loads ({text}) must be different numbers of cores from 0 to {_MOST_CORES:g}, as 0,0.7,1.4")
    return loads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--loads", default="0,0.7,1.4,2.8", help="cores of foreign load, separated by commas")
    parser.add_argument("--runs", type=int, default=5, help="runs of the command beside each load")
    parser.add_argument("--rounds", type=int, default=10, help="runs of each configuration on the quiet machine")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes after which a run of the command is ended")
    parser.add_argument("--repo", type=Path, default=ROOT, help="checkout of the product that is judged")
    parser.add_argument("--folder", type=Path, help="folder to keep the runs in; a run that it holds is not run again")
    options = parser.parse_args(arguments)
    try:
        loads = _cores(options.loads)
        _check(options)
        with raise_on_signals(), ExitStack() as stack:
            folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            plan = Plan(folder.resolve(), options.repo.resolve(), options.minutes)
            result = measure(plan, loads, options.runs, options.rounds)
    except CliError as error:
        for line in error.lines:
            sys.stderr.write(f"{line}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if options.json else "\n".join(lines(result)))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Reject options that cannot be measured with.

    Raises:
        InputError: names the option, its value and the remedy.
    """
    if options.runs < 1:
        raise InputError(f"--runs ({options.runs}) must be at least 1")
    if options.rounds < FEWEST_PAIRS:
        raise InputError(f"--rounds ({options.rounds}) must be at least {FEWEST_PAIRS}: fewer pairs show nothing")
    if not options.minutes > 0:
        raise InputError(f"--minutes ({options.minutes:g}) must be above 0")
    if not (options.repo / "examples" / "llama-tiny.json").is_file():
        raise InputError(f"--repo ({options.repo}) has no examples/llama-tiny.json; name a checkout of Shardtune")


if __name__ == "__main__":
    sys.exit(main())

"""Number of trials that each sampler needs on tables of measured configurations.

python -m benchmarks.search --table FOLDER … [--seeds 50] [--sampler NAME …] [--after FOLDER] [--curves FOLDER]
    [--json]
python -m benchmarks.search --sweep FILE … (the tables of a published sweep, as `benchmarks.parallel` reads them)
python -m benchmarks.search --record FOLDER --study FILE [--configurations 120] [--rounds 2] [--minutes 60]
python -m benchmarks.search --live FOLDER --study FILE [--studies 3] [--trials 6] [--fresh 7] [--json]
    (studies beside a whole space, measured like a table; the options of --record hold)

docs/measurements/search.md has the figures and says what a table holds.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.search import curves, live, samplers, scores, sweep
from benchmarks.search.measured import MeasuredTable, names_are_unique
from benchmarks.search.record import Recording, record
from benchmarks.search.replay import GOAL, replay
from benchmarks.search.table import read
from shardtune.service.cli.errors import CliError, InputError

EASY = 4
"""Trials that random search needs on a table which is shown and not counted."""


def report(tables: Sequence[MeasuredTable], chosen: dict[str, samplers.Entry], seeds: int) -> dict[str, Any]:
    """Everything `--json` prints."""
    scored = [_of_table(table, chosen, seeds) for table in tables]
    return {"tables": scored, "overall": scores.overall([item for item in scored if item["counted"]])}


def _of_table(table: MeasuredTable, chosen: dict[str, samplers.Entry], seeds: int) -> dict[str, Any]:
    good, count = scores.within_goal(table), len(table.space.measured)
    expected = scores.random_curve([table.share(key) for key in table.runs])
    results = {}
    for name, entry in chosen.items():
        replays = [replay(table, entry.start(table, seed), seed, count) for seed in range(seeds)]
        results[name] = scores.figures(replays, table, expected)
    by_chance = scores.random_median(good, count)
    return {
        "table": table.name,
        "configurations": count,
        "feasible": len(table.seconds),
        "within_3pct": good,
        "noise_between_runs": scores.noise(table),
        "random_exact_median": by_chance,
        "counted": by_chance > EASY,
        "seeds": seeds,
        "random_exact_curve": [round(share, 4) for share in expected],
        "samplers": results,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Report as text."""
    text_lines = []
    for table in result["tables"]:
        counted = "" if table["counted"] else ", not counted: chance finds it at once"
        text_lines.append(
            f"{table['table']}: {table['configurations']} configurations, {table['within_3pct']} within 3 % of the best; "
            f"exact random search needs {table['random_exact_median']} trials{counted}; {_noise(table['noise_between_runs'])}"
        )
        for name, item in table["samplers"].items():
            trials, after = item["trials_to_3pct"], item["share_of_best_after"]
            text_lines.append(
                f"  {name:22} trials {trials['median']} (p10 {trials['p10']}, p90 {trials['p90']}), "
                f"GPU-seconds {item['gpu_seconds_to_3pct']['median']}, share after 5/10/20: "
                f"{after['5']:.3f} {after['10']:.3f} {after['20']:.3f}, infeasible {item['infeasible_share']:.1%}, "
                f"regret {item['area_of_regret_20']:.4f}, ask {item['ask_ms']:.1f} ms"
            )
    for name, item in result["overall"].items():
        text_lines.append(
            f"{name} over the {item['tables']} tables that count: median {item['median']}, worst {item['worst']}"
        )
    return text_lines


def _noise(spread: float | None) -> str:
    if spread is None:
        return "nothing was run twice, so how much of the order is luck is not known"
    luck = ", so which are within 3 % is partly luck" if spread > 1 - GOAL else ""
    return f"runs of one differ by {spread:.1%}{luck}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay tables, or record one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, action="extend", nargs="+", default=[], help="folders of tables")
    parser.add_argument("--sweep", type=Path, action="extend", nargs="+", default=[], help="CSV files of sweeps")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--sampler", action="extend", nargs="+", default=[], help="default: all that are installed")
    parser.add_argument("--after", type=Path, help="a table searched before on the same machine: adds guided_after")
    parser.add_argument("--curves", type=Path, help="a folder for the curves as SVG, one file for each table")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", type=Path, help="measure a table here, or go on with it")
    parser.add_argument("--live", type=Path, help="measure a whole space here, and let studies search it")
    parser.add_argument("--study", type=Path, help="of --record and --live: the study file")
    parser.add_argument("--configurations", type=int, default=120, help="of --record and --live: how many of the space")
    parser.add_argument("--rounds", type=int, default=2, help="of --record and --live: runs of each")
    parser.add_argument("--minutes", type=float, default=60.0, help="of --record and --live: no run begins later")
    parser.add_argument("--studies", type=int, default=3, help="of --live")
    parser.add_argument("--trials", type=int, default=6, help="of --live: of each study")
    parser.add_argument("--fresh", type=int, default=7, help="of --live: runs of each finalist")
    options = parser.parse_args(arguments)
    try:
        folder = options.record or options.live
        if folder is None:
            print_report(options)
            return 0
        recording = Recording(folder, options.study, options.configurations, options.rounds, options.minutes)
        if options.record is not None:
            record(recording)
            return 0
        compared = live.compare(live.Comparison(recording, options.studies, options.trials, options.fresh))
        print(json.dumps(compared) if options.json else "\n".join(live.lines(compared)))
    except CliError as error:
        for line in error.lines:
            sys.stderr.write(f"{line}\n")
        return error.exit_code
    return 0


def print_report(options: argparse.Namespace) -> None:
    """Replay and print.

    Raises:
        InputError: no table, or one that cannot be used.
    """
    if not options.table and not options.sweep:
        raise InputError(
            "--table (missing): give the folders of tables to replay, --sweep FILE for those of a published sweep, "
            "or --record FOLDER to measure one"
        )
    if options.sweep and options.after is not None:
        raise InputError(f"--after ({options.after}) was measured on another machine than any --sweep; leave one out")
    if options.seeds < 1:
        raise InputError(f"--seeds ({options.seeds}) must be at least 1; 50 tell samplers apart")
    chosen = samplers.chosen(options.sampler)
    tables: list[MeasuredTable] = [read(folder) for folder in options.table]
    tables += [table for file in options.sweep for table in sweep.read(file)]
    earlier = None if options.after is None else read(options.after)
    names_are_unique([*tables, *([] if earlier is None else [earlier])])
    if earlier is not None:
        chosen["guided_after"] = samplers.Entry(samplers.Guided(after=earlier))
    result = report(tables, chosen, options.seeds)
    if options.curves is not None:
        curves.write(result, options.curves)
    print(json.dumps(result) if options.json else "\n".join(lines(result)))


if __name__ == "__main__":
    sys.exit(main())

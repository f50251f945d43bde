"""Error rate and power of the verdict, by replays on recorded noise.

`python -m benchmarks.verdicts --json [--record idle] [--studies 1000] [--data benchmarks/data/repeats.csv]`

Each study has 20 arms of the same speed, one of them the baseline; in the planted ones one other arm is 5 % faster. The
search sees every arm once and takes the fastest as finalists; then the final comparison of `tuner` runs as in a study, run by run, and
`tuner.verdict.ranking.result` judges. What a run measures is the true speed times recorded noise (`benchmarks.verdicts.noise`). The
sections `disturbed` replay the record of a disturbed machine, and the rule that repeats a disturbed run: as if the cores that
other programs took had been seen, and by the runs' own windows alone, which is all that this record has.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks import repeats
from benchmarks.verdicts import noise, replay
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget


def main(say: Callable[[str], None] = print) -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--data", type=Path, default=repeats.DATA)
    parser.add_argument("--record", action="append", help="records to draw from (idle)")
    parser.add_argument("--disturbed", action="append", help="records of a disturbed machine (busy)")
    parser.add_argument("--max-pairs", type=int, default=Budget().max_pairs)
    options = parser.parse_args()
    if options.max_pairs < FEWEST_PAIRS:
        parser.error(f"--max-pairs ({options.max_pairs}) must be at least {FEWEST_PAIRS}")
    quiet, loud = (
        [row for row in repeats.read(options.data) if row.record in names]
        for names in (options.record or ["idle"], options.disturbed or ["busy"])
    )
    if not quiet or not loud:
        parser.error(f"--record or --disturbed names none of the records in {options.data}")
    figures = replay.report(noise.of_records(quiet), options.studies, options.max_pairs)
    for name, rows in (("disturbed", noise.as_if_seen(loud)), ("disturbed_by_windows_alone", loud)):
        figures[name] = replay.disturbed(noise.of_records(rows), options.studies, options.max_pairs)
    say(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

"""GPU-seconds that whole studies take, and how often their answer is right, in virtual time.

`python -m benchmarks.study_cost --json [--case NAME …] [--studies 200] [--noise 0.005 0.01 0.03] [--whole-steps]
[--compile-anew]`

The service's planner (search, sampler, memory gate, final comparison, verdict, resume check) plans each study, and the
ranks' own rules decide how long each run is timed and when it is pruned. Only the runs are simulated: true step times
and peaks are predictions times errors drawn for each study (`truth`), runs and steps have the noise asked for
(`machine`), and what a run costs besides its steps is measured or stated (`overheads`).
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

from benchmarks.study_cost import report
from benchmarks.study_cost.cases import CASES


def main(say: Callable[[str], None] = print) -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--case", action="extend", nargs="+", default=[], choices=list(CASES), help="default: all")
    parser.add_argument(
        "--whole-steps", action="store_true", help="time whole steps in all runs (budget.short_steps false)"
    )
    parser.add_argument("--compile-anew", action="store_true", help="compile in each run as if workers kept no cache")
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.005, 0.01, 0.03])
    options = parser.parse_args()
    if options.studies < 1:
        parser.error(f"--studies ({options.studies}) must be at least 1; 200 show shares to a few per cent")
    if min(options.noise) <= 0:
        parser.error(f"--noise ({min(options.noise):g}) must be above 0; 0.005 is a quiet GPU host")
    figures: dict[str, Any] = {}
    for name in options.case or CASES:
        case = CASES[name]().varied(whole_steps=options.whole_steps, compiles_anew=options.compile_anew)
        by_noise = {f"{noise:g}": report.figures(case, report.simulate(case, noise, options.studies)) for noise in options.noise}  # fmt: skip
        figures[name] = {"overheads": case.overheads.source, "noise": by_noise}
        if not options.json:
            say(f"{name}: overheads {case.overheads.source}")
            for noise, row in by_noise.items():
                say(f"  noise {noise}: " + ", ".join(f"{field} {value}" for field, value in row.items()))
    if options.json:
        say(json.dumps(figures))


if __name__ == "__main__":
    main()

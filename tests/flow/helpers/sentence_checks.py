"""Check what the product says of a study's runs against the rows of its database, sentence by sentence."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session

from shardtune.api_schemas.formatting import rate
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.wording.backend_words import backend_name
from shardtune.tuner.verdict import run_load
from shardtune.tuner.verdict.run_load import RunLoad

_COMPLETE = TrialState.COMPLETE


@dataclass(frozen=True)
class Rows:
    """Rows of one study, and the result about which sentences are written."""

    result: StudyResult
    trials: dict[int, TrialRow]
    runs: list[RunRow]
    round: int

    @property
    def paired(self) -> int:
        """Number of the trial that was compared with the baseline."""
        return (self.result.candidate or self.result.best).trial_number

    @property
    def baseline(self) -> int:
        """Number of the baseline."""
        return self.result.baseline.trial_number

    def validation(self, trial: int | None = None) -> list[RunRow]:
        """Complete validation runs of the comparison that gave the result, in order."""
        return [
            run
            for run in self.runs
            if (run.purpose, run.state, run.comparison_round) == (RunPurpose.VALIDATION, _COMPLETE, self.round)
            and (trial is None or self.number(run) == trial)
        ]

    def number(self, run: RunRow) -> int:
        """Number of a run's trial; -1 for the model summary."""
        return next((number for number, row in self.trials.items() if row.id == run.trial_id), -1)

    def search(self, trial: int) -> Measurement | None:
        """Measurement of a trial's search run."""
        rows = [run for run in self.runs if run.trial_id == self.trials[trial].id and run.purpose == RunPurpose.SEARCH]
        return rows[0].measurement if rows else None

    def pairs(self, is_even: bool = True) -> list[tuple[float, int]]:
        """Ratio and number of disturbed runs of each block that has both the paired trial and the baseline, under equal
        load; with `is_even=False` under unequal load."""
        blocks: dict[int, list[RunRow]] = {}
        for run in self.validation():
            blocks.setdefault(run.comparison_block or 0, []).append(run)
        pairs = []
        for block in (blocks[name] for name in sorted(blocks)):
            arms = {self.number(run): run.measurement for run in block}
            if len({run.worker_id for run in block}) == 1 and {self.paired, self.baseline} <= arms.keys():
                one, other = arms[self.paired], arms[self.baseline]
                if run_load.is_even(RunLoad.of(one), RunLoad.of(other)) is not is_even:
                    continue
                pairs.append(
                    (one.tokens_per_s_per_gpu / other.tokens_per_s_per_gpu, bool(one.disturbed) + bool(other.disturbed))
                )
        return pairs


def rows_of(session: Session, study_id: str, result: StudyResult) -> Rows:
    """Read the rows of a study."""
    trials = session.scalars(select(TrialRow).where(TrialRow.study_id == study_id)).all()
    runs = session.scalars(select(RunRow).where(RunRow.study_id == study_id).order_by(RunRow.position)).all()
    row = session.get_one(StudyRow, study_id)
    number = result.final_comparison.number if result.final_comparison else row.comparison_round
    return Rows(result, {trial.number: trial for trial in trials}, list(runs), number)


def false_sentences(rows: Rows, sentences: list[str]) -> list[str]:
    """Sentences that the rows do not bear out, and those that no check knows."""
    return [sentence for sentence in sentences if not _is_true(rows, sentence)]


def _is_true(rows: Rows, sentence: str) -> bool:
    matches = [(check, re.fullmatch(pattern, sentence)) for pattern, check in _CHECKS.items()]
    checked = [check(rows, match) for check, match in matches if match is not None]
    return bool(checked) and all(checked)


def _paired_runs(rows: Rows, found: re.Match[str]) -> bool:
    count = int(found["count"])
    pairs = rows.pairs()[-count:]
    ratios = [ratio for ratio, _ in pairs]
    # The product forms a ratio from logarithms, so its last shown digit may differ where the ratio lies between two.
    is_range = found["low"] is None or (
        math.isclose(float(found["low"]), min(ratios), abs_tol=0.00501)
        and math.isclose(float(found["high"]), max(ratios), abs_tol=0.00501)
    )
    return len(pairs) == count and is_range


def _unpaired(rows: Rows, found: re.Match[str]) -> bool:
    runs = 1 if found["runs"] == "one run" else int(found["runs"].split()[0])
    best = rows.result.best.trial_number
    return runs == (len(rows.validation(best)) or 1) and (found["no_pair"] is None or not rows.pairs())


def _only_uneven(rows: Rows, found: re.Match[str]) -> bool:
    runs = 1 if found["runs"] == "one run" else int(found["runs"].split()[0])
    return runs == (len(rows.validation(rows.result.best.trial_number)) or 1) and bool(rows.pairs(is_even=False))


def _undecided(rows: Rows, found: re.Match[str]) -> bool:
    count = int(found["count"])
    pairs = rows.pairs()[-count:]
    won, disturbed = sum(ratio > 1 for ratio, _ in pairs), sum(runs for _, runs in pairs)
    stated = (int(found["won"]), int(found["disturbed"] or 0), int(found["of"] or 2 * count))
    is_all = all(runs for _, runs in pairs)
    return stated == (won, disturbed, 2 * len(pairs)) and ("no pair was undisturbed" in found[0]) == is_all


def _too_busy(rows: Rows, found: re.Match[str]) -> bool:
    busy = rows.result.too_busy
    stated = (int(found["disturbed"]), int(found["count"]))
    if found["kind"] == "search runs":
        measured = [rows.search(number) for number, row in rows.trials.items() if row.state.is_feasible]
        loads = [run for run in measured if run is not None]
        is_of_study = stated == (sum(run.disturbed is not None for run in loads), len(loads))
        return is_of_study and found["missing"] == "a new study"
    pairs = [*rows.pairs(), *rows.pairs(is_even=False)]
    is_all = stated[1] <= 2 * len(pairs) and stated[0] <= sum(runs for _, runs in pairs)
    missing = int(re.findall(r"(\d+) (?:more )?runs?", found["missing"])[0])
    return is_all and missing == busy.missing_runs > 0


def _kept(rows: Rows, found: re.Match[str]) -> bool:
    busy, verdict = rows.result.later_too_busy, rows.result.verdict
    stated = (int(found["disturbed"]), int(found["count"]))
    runs = [run for run in rows.runs if run.purpose == RunPurpose.VALIDATION and run.comparison_round > rows.round]
    is_after = found["kind"] == "search runs" or stated[1] <= len(runs)
    return is_after and verdict is Verdict.CONFIRMED and stated == (busy.disturbed_runs, busy.runs)


def _kept_undecided(rows: Rows, found: re.Match[str]) -> bool:
    later, verdict = rows.result.later_undecided, rows.result.verdict
    runs = [run for run in rows.runs if run.purpose == RunPurpose.VALIDATION and run.comparison_round > rows.round]
    stated = (int(found["won"] or 0), int(found["count"] or 0))
    is_after = 2 * stated[1] <= len(runs)
    return is_after and verdict is Verdict.CONFIRMED and stated == (later.won_pairs, later.pairs)


def _kept_not_faster(rows: Rows, found: re.Match[str]) -> bool:
    later, verdict = rows.result.later_not_faster, rows.result.verdict
    paired = {int(found["trial"]), int(found["baseline"])}
    runs = [
        run
        for run in rows.runs
        if run.purpose == RunPurpose.VALIDATION and run.comparison_round > rows.round and rows.number(run) in paired
    ]
    stated = (*(int(found[name]) for name in ("trial", "baseline", "count", "quiet")), found["ratio"])
    figures = (later.trial_number, later.baseline_number, later.pairs, later.undisturbed_pairs, f"{later.ratio:.2f}")
    is_other = paired != {rows.result.best.trial_number, rows.baseline}
    return (
        verdict is Verdict.CONFIRMED
        and stated == figures
        and 2 * later.pairs <= len(runs)
        and ("other configurations" in found[0]) is is_other
    )


def _replaced_confirmation(rows: Rows, found: re.Match[str]) -> bool:
    earlier, verdict = rows.result.confirmed_before, rows.result.verdict
    runs = [run for run in rows.runs if run.purpose == RunPurpose.VALIDATION and run.comparison_round < rows.round]
    stated = tuple(int(found[name]) for name in ("trial", "baseline", "count", "quiet"))
    figures = (earlier.trial_number, earlier.baseline_number, earlier.pairs, earlier.undisturbed_pairs)
    is_before = 2 * earlier.pairs <= len(runs) and found["ratio"] == f"{earlier.ratio:.2f}" and earlier.ratio > 1
    return verdict is not Verdict.CONFIRMED and stated == figures and is_before


def _left_out(rows: Rows, found: re.Match[str]) -> bool:
    return int(found["count"]) <= len(rows.pairs(is_even=False))


def _evenly_disturbed(rows: Rows, found: re.Match[str]) -> bool:
    pairs = rows.pairs()[-int(found["of"]) // 2 :]
    return (int(found["disturbed"]), int(found["of"])) == (sum(runs for _, runs in pairs), 2 * len(pairs))


def _also_run(rows: Rows, found: re.Match[str]) -> bool:
    named = {kind: set(map(int, numbers.split(", "))) for numbers, kind in re.findall(_ALSO, found["groups"])}
    repeated = {rows.number(run) for run in rows.validation()}
    is_paired = found["paired"] is None or (int(found["paired"]) == rows.paired and bool(rows.pairs()))
    others, candidates = repeated - {rows.paired, rows.baseline}, set(rows.result.final_comparison.candidates)
    of_kinds = (named.get("candidate", set()), named.get("documented default", set()))
    is_default = all(rows.trials[number].origin == "default" for number in of_kinds[1])
    return of_kinds == (others & candidates, others - candidates) and is_default and is_paired


def _overlap(rows: Rows, found: re.Match[str]) -> bool:
    """Each named trial has a run between those of the paired one, or the paired one has a run between its own."""
    named, paired = [int(number) for number in found["others"].split(", ")], int(found["paired"])
    speeds = {
        number: [run.measurement.tokens_per_s_per_gpu for run in rows.validation(number)] for number in [paired, *named]
    }
    own = speeds[paired]
    is_among = all(min(speeds[number]) <= max(own) and min(own) <= max(speeds[number]) for number in named)
    return is_among and paired == rows.paired and set(named) <= set(rows.result.final_comparison.candidates)


_ALSO = r"trials? ([\d, ]+) \((?:a )?(candidate|documented default)s?\)"


def _count_although(rows: Rows, found: re.Match[str]) -> bool:
    runs = rows.validation(int(found["trial"]))
    disturbed = [run.measurement.disturbed for run in runs if run.measurement and run.measurement.disturbed]
    return (int(found["disturbed"]), int(found["count"]), found["last"]) == (len(disturbed), len(runs), disturbed[-1])


def _wide(rows: Rows, found: re.Match[str]) -> bool:
    low, high = rows.result.speedup.ci95
    figures = (float(found["low"]), float(found["high"]), int(found["pairs"]))
    return figures == (round(low, 2), round(high, 2), rows.result.speedup.pairs) and high / low > 1.5


def _searches(rows: Rows, found: re.Match[str]) -> bool:
    measured = [number for number, row in rows.trials.items() if row.state.is_feasible and rows.search(number)]
    disturbed = [number for number in measured if rows.search(number).disturbed]
    return (int(found["disturbed"]), int(found["count"])) == (len(disturbed), len(measured))


def _short(rows: Rows, found: re.Match[str]) -> bool:
    return int(found["count"]) == sum(row.state is _COMPLETE for row in rows.trials.values())


def _only_one(rows: Rows, _: re.Match[str]) -> bool:
    return sum(row.state is _COMPLETE for row in rows.trials.values()) == 1


def _only_backend(rows: Rows, _: re.Match[str]) -> bool:
    complete = {row.config.backend for row in rows.trials.values() if row.state is _COMPLETE}
    return complete == {rows.result.best.config.backend}


def _agreement(rows: Rows, found: re.Match[str]) -> bool:
    own = backend_name(rows.result.best.config.backend)
    complete = [row.config for row in rows.trials.values() if row.state is _COMPLETE]
    names = {backend_name(config.backend) for config in complete} - {own}
    losses = {rows.search(number).losses[0] for number, row in rows.trials.items() if row.state is _COMPLETE}
    is_same = len(losses) == 1
    others = found["others"]
    named = re.split(" and |, ", others)
    return is_same and (named == sorted(names) if names else others.startswith("another configuration"))


def _against_default(rows: Rows, found: re.Match[str]) -> bool:
    (row,) = [item for item in rows.result.against_defaults if item.description == found["name"]]
    best, default = rows.result.best.trial_number, row.trial_number
    if found["kind"] == "by search runs":
        runs = [[rows.search(best)], [rows.search(default)]]
    else:
        runs = [[run.measurement for run in rows.validation(number)] for number in (best, default)]
        if int(found["kind"].split()[1]) != len(runs[1]):
            return False
    speeds = [median(run.tokens_per_s_per_gpu for run in side) for side in runs]
    disturbed = any(run.disturbed for side in runs for run in side)
    is_ratio = math.isclose(float(found["ratio"]), speeds[0] / speeds[1], abs_tol=0.006)
    return is_ratio and found["speed"] == rate(speeds[1]) and (found["disturbed"] is not None) == disturbed


def _default_note(rows: Rows, found: re.Match[str]) -> bool:
    defaults = [number for number, row in rows.trials.items() if row.origin == "default"]
    repeated = [number for number in defaults if rows.validation(number)]
    count = re.fullmatch(r"by validation runs of (\d+) defaults", found["how"])
    return int(count[1]) == len(repeated) if count else len(repeated) <= 1


def _far_behind(rows: Rows, found: re.Match[str]) -> bool:
    undisturbed = [ratio for ratio, runs in rows.pairs() if not runs]
    is_all = (int(found["trial"]), int(found["count"])) == (rows.paired, len(undisturbed))
    return is_all and found["percent"] == f"{max(undisturbed):.0%}"


def _too_few(rows: Rows, found: re.Match[str]) -> bool:
    blocks: dict[int, set[str | None]] = {}
    for run in rows.validation():
        blocks.setdefault(run.comparison_block or 0, set()).add(run.worker_id)
    lost = sum(len(workers) > 1 for workers in blocks.values())
    return int(found["count"]) <= len(rows.pairs()) and int(found["lost"] or 0) == lost


def _resume(rows: Rows, found: re.Match[str]) -> bool:
    return any(
        run.purpose == RunPurpose.RESUME_CHECK and run.state is _COMPLETE
        for run in rows.runs
        if rows.number(run) == rows.result.best.trial_number
    ) == found[1].startswith("passed")


def _failed_resume(rows: Rows, found: re.Match[str]) -> bool:
    number = int(found["trial"])
    return any(
        run.purpose == RunPurpose.RESUME_CHECK and run.failure for run in rows.runs if rows.number(run) == number
    )


def _run_again(rows: Rows, found: re.Match[str]) -> bool:
    count, is_first = sum(run.purpose == RunPurpose.VALIDATION for run in rows.runs), found["several"] is None
    return (int(found["runs"]), is_first) == (count, rows.result.final_comparison.number <= 1)


def _middle_pair(rows: Rows, found: re.Match[str]) -> bool:
    """The two speeds are those of runs of the pairs, and divide to the stated gain, which is the median ratio."""
    gain, (faster, slower) = rows.result.speedup.value, (float(found[n].replace(",", "")) for n in ("one", "other"))
    sides = ((faster, rows.paired), (slower, rows.baseline))
    speeds = [
        (speed, [run.measurement.tokens_per_s_per_gpu for run in rows.validation(trial)]) for speed, trial in sides
    ]
    is_measured = all(min(runs) - 1 <= speed <= max(runs) + 1 for speed, runs in speeds)
    return is_measured and found["ratio"] == f"{gain:.2f}" and math.isclose(faster / slower, gain, rel_tol=0.01)


def _medians(rows: Rows, found: re.Match[str]) -> bool:
    numbers = {"best": rows.result.best.trial_number, "baseline": rows.baseline, "candidate": rows.paired}
    return all(_is_median(rows, numbers[part[1]], part) for part in re.finditer(_MEDIAN, found["sides"]))


_MEDIAN = r"(best|baseline|candidate) (?P<speed>[\d,.]+) tokens/s/GPU in (?P<runs>\d+) runs?( \((?P<low>\S+) to (?P<high>\S+)\))?"


def _is_median(rows: Rows, trial: int, part: re.Match[str]) -> bool:
    runs = [run.measurement for run in rows.validation(trial)] or [rows.search(trial)]
    speeds = [run.tokens_per_s_per_gpu for run in runs]
    ends = (min(speeds), max(speeds)) if len(speeds) > 1 else (None, None)
    shown = [None if end is None else rate(end) for end in ends]
    return (part["speed"], int(part["runs"]), [part["low"], part["high"]]) == (
        rate(median(speeds)),
        len(runs),
        shown,
    )


def _nothing_else(rows: Rows, _: re.Match[str]) -> bool:
    return sum(row.state is _COMPLETE for row in rows.trials.values()) == 1 and not rows.validation()


def _first_feasible(rows: Rows, found: re.Match[str]) -> bool:
    feasible = {number: row.origin for number, row in rows.trials.items() if row.state is _COMPLETE}
    return int(found["trial"]) == min(feasible) == rows.baseline and "default" not in feasible.values()


def _replaced(rows: Rows, found: re.Match[str]) -> bool:
    (given,) = [row for row in rows.trials.values() if row.origin == "baseline"]
    why = given.failure.message if given.failure is not None else f"it is {given.state.value}"
    return given.state is not _COMPLETE and found["why"] == why


_CHECKS: dict[str, Callable[[Rows, re.Match[str]], bool]] = {
    r"(?P<count>\d+) paired runs? after the search \(.*?\)(: from (?P<low>\S+)× to (?P<high>[\d.]+)×)?"
    r"(; the spread is large)?": _paired_runs,
    r"measured in (?P<runs>one run|\d+ runs), (without paired runs|(?P<no_pair>and no pair .* was completed))": _unpaired,
    r"measured in (?P<runs>one run|\d+ runs), and no pair .* had unequal load": _only_uneven,
    r"the machine was too busy to answer: (?:other programs disturbed )?(?P<disturbed>\d+) of (?P<count>\d+) "
    r"(?P<kind>runs in pairs|search runs).*; an answer takes (?P<missing>a new study|\d+ more runs?|.* \(\d+ runs\)) on a "
    r"quiet machine": _too_busy,
    r"the machine was too busy to compare again after the study was extended, so its confirmed answer stays: "
    r"(?P<disturbed>\d+) of (?P<count>\d+) (?P<kind>runs in pairs|search runs) were disturbed; .*": _kept,
    r"the new comparison after the study was extended was undecided, so its confirmed answer stays: "
    r"(no pair of its candidate and the baseline was completed|its candidate won (?P<won>\d+) of (?P<count>\d+) pairs?)": _kept_undecided,
    r"the new comparison after the study was extended found its candidate not faster, and the confirmed answer stays: "
    r"trial (?P<trial>\d+) against trial (?P<baseline>\d+), (?P<ratio>[\d.]+)× in (?P<count>\d+) pairs? "
    r"\((?P<quiet>\d+) undisturbed\); .*": _kept_not_faster,
    r"an earlier comparison of this study confirmed a gain, and newer runs contradict it: trial (?P<trial>\d+) \(.*\) was "
    r"confirmed as (?P<ratio>[\d.]+)× as fast as trial (?P<baseline>\d+) by (?P<count>\d+) pairs? "
    r"\((?P<quiet>\d+) undisturbed\), on .* UTC": _replaced_confirmation,
    r"in the (middle pair|two middle pairs, on average): (?P<one>[\d,.]+) against the baseline's (?P<other>[\d,.]+) tokens/s/GPU, "
    r"which is (?P<ratio>[\d.]+)×": _middle_pair,
    r"medians of all runs(, which need not divide to the gain of the pairs)?: (?P<sides>.*)": _medians,
    r"(?P<count>\d+) more pairs? (was|were) left out, .*": _left_out,
    r"other programs disturbed (?P<disturbed>\d+) of the (?P<of>\d+) runs in these pairs.*": _evenly_disturbed,
    r"undecided: no pair of candidate and baseline was completed": lambda rows, _: not rows.pairs(),
    r"undecided: the candidate won (?P<won>\d+) of (?P<count>\d+) pairs"
    r"(, and other programs disturbed (?P<disturbed>\d+) of their (?P<of>\d+) runs)?; .*": _undecided,
    r"also run again: (?P<groups>trials? .*?\))(; trial (?P<paired>\d+) went into the pairs(, as the fastest candidate by then)?)?": _also_run,
    r"not distinguishable from trial (?P<paired>\d+): trials? (?P<others>[\d, ]+) \(the speeds of their validation runs overlap\)": _overlap,
    r"(?P<disturbed>\d+) of the (?P<count>\d+) validation runs? of (?:the baseline, )?trial (?P<trial>\d+),? (?:counts? although|was|were) disturbed "
    r"\(the last: (?P<last>.*)\)": _count_although,
    r"how much faster it is stays uncertain: (?P<low>[\d.]+)× to (?P<high>[\d.]+)× \(95 % interval of (?P<pairs>\d+) pairs\)": _wide,
    r"(?P<disturbed>\d+) of (?P<count>\d+) search runs? (was|were) disturbed: .*": _searches,
    r"a short search: (?P<count>\d+) configurations? (?:was|were) measured in full.*": _short,
    r"losses, gradient norms and weights agree with those of (?P<others>.*)": _agreement,
    r"only one configuration was measured, so no other confirms its losses": _only_one,
    r"no trial of another backend was measured in full, so none confirms its losses": _only_backend,
    r"(?P<ratio>[\d.]+)x the speed of (?P<name>.*) \((?P<speed>[\d,.]+) tokens/s/GPU "
    r"(?P<kind>by search runs|in \d+ validation runs?)(?P<disturbed>, (?:at least one of them )?disturbed)?; .*\)": _against_default,
    r"baseline: .*, the fastest documented default \((?P<how>.*)\)": _default_note,
    r"trial (?P<trial>\d+) reached at most (?P<percent>\d+%) of the baseline's speed in (?P<count>\d+) pairs? .*": _far_behind,
    r"too few pairs for an interval: (?P<count>\d+) of at least 7(; (?P<lost>\d+) blocks? did not count.*)?": _too_few,
    r"checkpoint resume: (.*)": _resume,
    r"trial (?P<trial>\d+) was to be recommended and failed its resume check: .*": _failed_resume,
    r"all configurations run again took (?P<runs>\d+) validation runs?(?P<several> in all final comparisons of the study)?, failed ones .*": _run_again,
    r"no documented default is feasible; the baseline is trial (?P<trial>\d+), the first feasible one": _first_feasible,
    r"the given baseline was replaced: (?P<why>.*)": _replaced,
    r"no other configuration is feasible: there is nothing to compare": _nothing_else,
    r"only configurations of backend (?P<backend>\w+) are feasible, so no other backend .*": lambda rows, found: (
        {row.config.backend for row in rows.trials.values() if row.state is _COMPLETE} == {found["backend"]}
    ),
}

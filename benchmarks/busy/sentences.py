"""Sentences of an answer, each checked against the rows of the study's database.

A sentence that no pattern reads is reported as unread and counts as neither true nor false.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.busy.cost_and_verdict import checkpoint_cost, is_uncertain, was_default, were_enough
from benchmarks.busy.evidence import Evidence, Match
from benchmarks.busy.rows import StudyRows, typical_speed
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.study_words import rate


@dataclass(frozen=True)
class Statements:
    """Outcome of checking an answer: its number of statements, the false ones, and the sentences that nothing read."""

    count: int
    false: tuple[str, ...]
    unread: tuple[str, ...]


def _were_repeated(evidence: Evidence, match: Match) -> bool:
    return all(evidence.rows.speeds(int(text)) for text in re.findall(r"\d+", match[1]))


def _was_fastest(evidence: Evidence, match: Match) -> bool:
    numbers = [int(text) for text in re.findall(r"\d+", f"{match[1]} {match[2]}")]
    return max(numbers, key=lambda number: typical_speed(evidence.rows, number) or 0.0) == int(match[2])


def _was_paired(evidence: Evidence, match: Match) -> bool:
    return int(match[1]) == evidence.paired[0] and bool(evidence.pair_ratios)


def _overlap(evidence: Evidence, match: Match) -> bool:
    own = evidence.rows.speeds(int(match[1]))
    others = [evidence.rows.speeds(int(text)) for text in re.findall(r"\d+", match[2])]
    is_paired = int(match[1]) == evidence.paired[0]
    return is_paired and all(
        own and speeds and min(speeds) <= max(own) and min(own) <= max(speeds) for speeds in others
    )


def _count_disturbed(evidence: Evidence, match: Match) -> bool:
    runs = [run for run in evidence.rows.validation if run.trial == int(match[3])]
    return (sum(run.is_disturbed for run in runs), len(runs)) == (int(match[1]), int(match[2]))


def _count_pairs(evidence: Evidence, match: Match) -> bool:
    ratios = evidence.pair_ratios
    shown = {text for text in (match[2], match[3]) if text}
    return int(match[1]) <= len(ratios) and shown <= {f"{ratio:.2f}" for ratio in ratios}


def _count_won(evidence: Evidence, match: Match) -> bool:
    ratios, won, pairs = evidence.pair_ratios, int(match[1]), int(match[2])
    return pairs <= len(ratios) and won <= sum(ratio > 1 for ratio in ratios)


def _disturbed_pairs(evidence: Evidence, match: Match) -> bool:
    return int(match[1] or match[2]) <= evidence.paired_disturbances


def _too_busy(evidence: Evidence, match: Match) -> bool:
    searched = match[3] == "search"
    runs = (
        evidence.rows.search if searched else [run for run in evidence.rows.validation if run.trial in evidence.paired]
    )
    return int(match[1]) <= sum(run.is_disturbed for run in runs) and int(match[2]) <= len(runs)


def _left_out(evidence: Evidence, match: Match) -> bool:
    return int(match[1]) <= min(len(evidence.pair_ratios), evidence.paired_disturbances)


def _short_search(evidence: Evidence, match: Match) -> bool:
    complete = [trial for trial in evidence.rows.trials if trial.state == "complete"]
    sizes = {trial.config.get("micro_batch", 1) for trial in complete}
    return len(complete) == int(match[1]) and (match[2] is None or sizes == {int(match[2])})


def _agreement(evidence: Evidence, match: Match) -> bool:
    if match[1].startswith("another"):
        return sum(trial.state == "complete" for trial in evidence.rows.trials) > 1
    backends = {backend_name(trial.backend) for trial in evidence.rows.trials if trial.state == "complete"}
    return set(re.split(r" and |, ", match[1])) <= backends


def _against_default(evidence: Evidence, match: Match) -> bool:
    rows, runs = evidence.rows, 1 if match[2] in ("in one run", "by search runs") else int(match[2].split()[1])
    figures = {(rate(typical_speed(rows, t.number) or 0.0), max(1, len(rows.speeds(t.number)))) for t in rows.trials}
    searched = {(rate(run.speed), 1) for run in rows.search}
    return (match[1], runs) in figures | searched


def _runs_of_best(evidence: Evidence, match: Match) -> bool:
    runs = 1 if match[1] == "one run" else int(match[1].split()[0])
    return max(1, len(evidence.rows.speeds(evidence.best))) == runs


def _disturbed_searches(evidence: Evidence, match: Match) -> bool:
    complete = {trial.number for trial in evidence.rows.trials if trial.state == "complete"}
    everything = evidence.rows.search
    counts = {
        (sum(run.is_disturbed for run in runs), len(runs))
        for runs in (everything, [run for run in everything if run.trial in complete])
    }
    return (int(match[1]), int(match[2])) in counts


def _has_no_pair(evidence: Evidence, _match: Match) -> bool:
    return not evidence.pair_ratios


def _has_no_undisturbed_pair(evidence: Evidence, _match: Match) -> bool:
    return len(evidence.pair_ratios) <= evidence.paired_disturbances


def _is_alone(evidence: Evidence, _match: Match) -> bool:
    return sum(trial.state == "complete" for trial in evidence.rows.trials) == 1


def _resumed(evidence: Evidence, _match: Match) -> bool:
    return evidence.rows.resume_checks > 0


CHECKS: tuple[tuple[str, Callable[[Evidence, Match], bool]], ...] = (
    (r"^(?:also run again|run again, too): trials? ([^;]+)", _were_repeated),
    (r"trials? ([\d, ]+); trial (\d+) was the fastest", _was_fastest),
    (r"; trial (\d+) went into the pairs", _was_paired),
    (r"^not distinguishable from trial (\d+): trials? ([\d, ]+)", _overlap),
    (
        r"(\d+) of the (\d+) (?:validation|fresh) runs? of (?:the baseline, )?trial (\d+),? (?:counts? although|was|were) disturbed",
        _count_disturbed,
    ),
    (r"^(\d+) (?:paired runs? after|pairs of fresh runs)(?:.*: from ([\d.]+)× to ([\d.]+)×)?", _count_pairs),
    (r"the candidate won (\d+) of (\d+) pairs", _count_won),
    (
        r"disturbed (\d+) of (?:their|these) (?:\d+ )?(?:runs|pairs)|(\d+) of their runs were disturbed",
        _disturbed_pairs,
    ),
    (
        r"disturbed (\d+) of (?:the )?(\d+) (paired runs|search|runs of the final|runs in pairs|runs in these)",
        _too_busy,
    ),
    (r"too busy to answer: (\d+) of (\d+) (search|runs in pairs)", _too_busy),
    (r"^(\d+) more pairs? (?:was|were) left out", _left_out),
    (r"^(\d+) of (\d+) search runs? (?:was|were) disturbed", _disturbed_searches),
    (r"no pair of candidate and baseline was completed", _has_no_pair),
    (r"no pair was undisturbed", _has_no_undisturbed_pair),
    (
        r"^a short search: (\d+) configurations? (?:was|were) measured(?:.*?, all of them with micro batch (\d+))?",
        _short_search,
    ),
    (r"agree with those of (.+)$", _agreement),
    (r"^only one configuration was measured", _is_alone),
    (
        r"the speed of .* \(([\d,.]+) tokens/s/GPU (in one run|in \d+ (?:validation )?runs?|by search runs)",
        _against_default,
    ),
    (r"^measured in (one run|\d+ runs), ", _runs_of_best),
    (r"^checkpoint resume: passed|^went on from its own checkpoint", _resumed),
    (
        r"^checkpoints: (less than 0\.01%|[\d.]+%) of training time with a blocking save every ([\d,]+) s(?: \(([\d,]+) MB/s)?",
        checkpoint_cost,
    ),
    (
        r"^baseline: .*, the fastest documented default \((by validation runs of (\d+) defaults|by its search run|the only.*)\)",
        was_default,
    ),
    (
        r"^(\d+) pairs were enough: none of their runs was disturbed, and (?:(the whole interval)|they rule out)",
        were_enough,
    ),
    (r"^how much faster it is stays uncertain: ([\d.]+)× to ([\d.]+)× \(95 % interval of (\d+) pairs\)", is_uncertain),
)
"""Patterns of sentences with their checks, for this checkout's words and those of f1021fe; all that match apply."""


def check(answer: Mapping[str, Any], rows: StudyRows) -> Statements:
    """Check the sentences and counts of an answer against the rows of its study."""
    evidence, false, unread = Evidence(answer, rows), list[str](), list[str]()
    sentences = [str(reason["text"]) for reason in answer["trust"]]
    for sentence in sentences:
        matches = [(test, match) for pattern, test in CHECKS if (match := re.search(pattern, sentence))]
        if not matches:
            unread.append(sentence)
        elif not all(test(evidence, match) for test, match in matches):
            false.append(sentence)
    counts = _counts(evidence)
    false += [name for name, is_true in counts.items() if not is_true]
    return Statements(len(sentences) - len(unread) + len(counts), tuple(false), tuple(unread))


def _counts(evidence: Evidence) -> dict[str, bool]:
    """Figures of the answer's JSON by name, and whether the rows agree."""
    answer, rows = evidence.answer, evidence.rows
    stated = {state: count for state, count in answer["trials"].items() if count}
    states = [trial.state for trial in rows.trials]
    checks = {f"trials: {stated}": stated == {state: states.count(state) for state in stated}}
    comparison = answer.get("final_comparison") or answer.get("promotion")
    if comparison:
        repeated = all(rows.speeds(number) for number in comparison["candidates"])
        checks[f"final_comparison.candidates: {comparison['candidates']}"] = repeated
        checks[f"final_comparison.pairs: {comparison['pairs']}"] = comparison["pairs"] <= len(evidence.pair_ratios)
        checks[f"final_comparison.runs: {comparison['runs']}"] = comparison["runs"] <= rows.validation_rows
    return checks

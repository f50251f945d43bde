"""`benchmarks.busy`: its foreign load ends with it, its judgement is the product's test, its sentences are rows."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.busy import __main__ as busy
from benchmarks.busy.foreign_load import foreign_load, fractions
from benchmarks.busy.quiet_truth import Claim, Truth, claim_of, reference_of
from benchmarks.busy.rows import rows_of
from benchmarks.busy.sentences import check
from benchmarks.busy.tune_runs import Plan, TuneRun, tune_beside
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from tests.support.long_run import wide
from tests.support.processes.stack import until

FAST = TrialConfig(strategy=DdpConfig(), micro_batch=8)
SLOW = TrialConfig(strategy=DdpConfig())
OTHER = TrialConfig(strategy=Fsdp2Config(dp_shard=2))
ROUNDS = 7


def plain(config: TrialConfig) -> dict:
    return config.model_dump(mode="json")


def run_row(position: int, trial: int, speed: float, purpose: str = "search", **columns: object) -> dict:
    measurement = {"tokens_per_s_per_gpu": speed, "disturbed": columns.pop("disturbed", None)}
    row = {"position": position, "trial_id": trial, "purpose": purpose, "state": "complete", "comparison_round": 1}
    return row | {"comparison_block": None, "measurement": json.dumps(measurement), **columns}


def history(**study: object):
    """Rows of a study: trial 0 is the slow default, 1 the fast winner, 2 another backend; seven pairs of 0 and 1."""
    trials = [
        {"id": number, "number": number, "state": "complete", "origin": origin, "config": json.dumps(plain(config))}
        for number, (config, origin) in enumerate(((SLOW, "default"), (FAST, "sampler"), (OTHER, "default")))
    ]
    runs = [run_row(position, position, speed) for position, speed in enumerate((100.0, 160.0, 120.0))]
    for block in range(ROUNDS):
        for trial, speed in ((0, 100.0), (1, 150.0 + block)):
            reason = "other programs kept 1.4 of 2 cores busy" if (block, trial) == (3, 1) else None
            place = {"comparison_block": block, "disturbed": reason}
            runs.append(run_row(len(runs), trial, speed, "validation", **place))
    return rows_of({"comparison_round": 1} | study, trials, runs)


def answer_of(*sentences: str, **changes: object) -> dict:
    contenders = {name: {"config": plain(config)} for name, config in (("best", FAST), ("baseline", SLOW))}
    comparison = {"candidates": [1], "pairs": ROUNDS, "runs": 2 * ROUNDS}
    answer = {**contenders, "verdict": "confirmed", "speedup": None, "trials": {"complete": 3, "infeasible": 0}}
    return answer | {"trust": [{"text": text} for text in sentences], "final_comparison": comparison, **changes}


def test_candidates_whose_runs_overlap_are_not_distinguishable() -> None:
    sentence = "not distinguishable from trial 1: trial 1 (the speeds of their validation runs overlap)"
    statements = check(answer_of(sentence), history())
    assert (statements.false, statements.unread) == ((), ()), "a trial's own runs overlap"


def tune_run(answer: dict | None = None, load: float = 0.0) -> TuneRun:
    return TuneRun(load, 1, "steady", answer, None if answer is None else history())


def truth(**speeds: float) -> Truth:
    named = {"fast": FAST, "slow": SLOW, "other": OTHER}
    return Truth({named[name].content_key(): [1.0 / speed] * ROUNDS for name, speed in speeds.items()})


TRUE_SENTENCES = (
    "1 of the 7 validation runs of trial 1 count although disturbed (other programs kept 1.4 of 2 cores busy)",
    "7 paired runs after the search (candidate and baseline in turn, each in new processes): from 1.50× to 1.56×",
    "7 pairs of fresh runs (candidate and baseline in turn), which the search did not see: from 1.50× to 1.56×",
    "undecided: the candidate won 7 of 7 pairs, and other programs disturbed 1 of their runs; at this rate",
    "undecided: the candidate won 7 of 7 pairs, and 1 of their runs were disturbed by other programs; if it goes on",
    "also run again: trial 0; trial 1 was the fastest in these runs",
    "also run again: trial 0; trial 1 went into the pairs",
    "also run again: trial 0 (a candidate); trial 1 went into the pairs, as the fastest candidate by then",
    "7 paired runs after the search (each in new processes): from 1.50× to 1.56×; other programs disturbed 1 of these pairs",
    "a short search: 3 configurations were measured in full; a larger budget may find a faster one",
    "a short search: 3 configurations were measured; a larger budget may find a faster one",
    "1.33x the speed of FSDP2 (120 tokens/s/GPU by search runs; the only micro batch measured)",
    "1.53x the speed of DDP (100 tokens/s/GPU in 7 validation runs, at least one of them disturbed by other programs; the only micro batch)",
    "losses, gradient norms and weights agree with those of FSDP2",
    "1.53x the speed of DDP, micro batch 1 (100 tokens/s/GPU in 7 runs; tried at no other micro batch)",
    "the machine was too busy to answer: other programs disturbed 1 of 14 runs of the final comparison and kept 1.4 CPU cores busy",
    "the machine was too busy to answer: other programs disturbed 1 of 14 runs in pairs and kept 1.4 CPU cores busy",
    "the machine was too busy to answer: other programs disturbed 1 of 14 runs in pairs (left-out pairs included) and kept 1.4 CPU cores busy",
    "the machine was too busy to answer: 1 of 14 runs in pairs was disturbed, as their timed windows show; by what is not known",
    "1.53x the speed of DDP (100 tokens/s/GPU in 7 validation runs, at least one of them disturbed; the only micro batch)",
)
FALSE_SENTENCES = (
    "run again, too: trial 2; trial 1 was the fastest there",
    "also run again: trial 1; trial 0 was the fastest in these runs",
    "2 of the 7 validation runs of trial 1 count although disturbed (other programs)",
    "1 of the 9 fresh runs of trial 1 count although disturbed (other programs)",
    "8 paired runs after the search (candidate and baseline in turn, each in new processes): from 1.50× to 1.56×",
    "7 paired runs after the search (candidate and baseline in turn, each in new processes): from 1.20× to 1.56×",
    "undecided: the candidate won 8 of 9 pairs; at this rate, 1 more pair would confirm it",
    "undecided: the candidate won 5 of 7 pairs, and other programs disturbed 3 of their runs; at this rate",
    "a short search: 5 configurations were measured; a larger budget may find a faster one",
    "a short search: 3 configurations were measured, all of them with micro batch 8; a larger budget",
    "losses agree with those of DeepSpeed ZeRO",
    "1.53x the speed of DDP, micro batch 1 (111 tokens/s/GPU in 7 runs; tried at no other micro batch)",
    "checkpoint resume: passed (4 steps, 45.5 MiB saved in 0.08 s)",
    "the machine was too busy to answer: other programs disturbed 2 of 3 search runs",
    "the machine was too busy to answer: 2 of 3 search runs were disturbed, as their timed windows show; by what is not known",
    "also run again: trial 1; trial 0 went into the pairs",
    "not distinguishable from trial 1: trial 0 (the speeds of their validation runs overlap)",
    "not distinguishable from trial 1: trial 2 (the speeds of their validation runs overlap)",
    "7 paired runs after the search (each in new processes); other programs disturbed 5 of these pairs",
    "2 of 3 search runs were disturbed by other programs: what ran there may be faster than measured",
    "2 of 3 search runs were disturbed: what ran there may be faster than measured; a new study on a quiet machine would tell",
    "undecided: no pair of candidate and baseline was completed",
    "undecided: the candidate won 7 of 7 pairs; no pair was undisturbed, and only a quieter machine can decide it",
    "only one configuration was measured, so no other confirms its losses",
)


@pytest.mark.parametrize("sentence", TRUE_SENTENCES)
def test_a_sentence_that_the_rows_bear_out_is_true(sentence: str) -> None:
    statements = check(answer_of(sentence), history())
    assert (statements.false, statements.unread) == ((), ())


@pytest.mark.parametrize("sentence", FALSE_SENTENCES)
def test_a_sentence_that_the_rows_contradict_is_false(sentence: str) -> None:
    assert check(answer_of(sentence), history()).false == (sentence,)


def test_a_sentence_that_nothing_reads_is_neither_true_nor_false() -> None:
    statements = check(answer_of("the moon was full"), history())
    assert (statements.unread, statements.false) == (("the moon was full",), ())


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": {"complete": 4, "infeasible": 0}},
        {"final_comparison": {"candidates": [1, 2], "pairs": ROUNDS, "runs": 14}},
        {"final_comparison": {"candidates": [1], "pairs": ROUNDS + 1, "runs": 14}},
        {"final_comparison": None, "promotion": {"candidates": [1], "pairs": ROUNDS, "runs": 99}},
    ],
)
def test_a_figure_that_the_rows_contradict_is_false(changes: dict) -> None:
    assert len(check(answer_of(**changes), history()).false) == 1


def test_rows_of_an_older_checkout_are_read_by_its_own_words() -> None:
    older = {"comparison_round": "promotion_round", "comparison_block": "block"}
    trials = [{"id": 7, "number": 0, "state": "complete", "config": json.dumps(plain(SLOW))}]
    row = run_row(0, 7, 100.0, "confirm", comparison_block=2)
    rows = rows_of({"promotion_round": 1}, trials, [{older.get(name, name): value for name, value in row.items()}])
    assert [(run.trial, run.block) for run in rows.validation] == [(0, 2)]
    assert rows_of({"promotion_round": 2}, trials, [row]).validation == (), "an earlier comparison does not count"


@pytest.mark.parametrize(
    ("claim", "known", "outcome"),
    [
        (Claim("confirmed", FAST, SLOW), {"fast": 1.5, "slow": 1.0}, "right"),
        (Claim("confirmed", FAST, SLOW), {"fast": 1.0, "slow": 1.0}, "wrong"),
        (Claim("not_faster", SLOW, SLOW, (FAST,)), {"fast": 1.5, "slow": 1.0}, "wrong"),
        (Claim("not_faster", SLOW, SLOW, (FAST,)), {"fast": 1.01, "slow": 1.0}, "right"),
        (Claim("not_faster", SLOW, SLOW, (OTHER, FAST)), {"fast": 0.9, "other": 1.2, "slow": 1.0}, "wrong"),
        (Claim("undecided", FAST, SLOW, (OTHER,)), {}, "undecided_or_busy"),
        (Claim("too_busy", FAST, SLOW), {}, "undecided_or_busy"),
        (Claim(None), {}, "undecided_or_busy"),
    ],
)
def test_a_claim_is_judged_by_the_paired_test_on_the_quiet_machine(claim: Claim, known: dict, outcome: str) -> None:
    judged = truth(**known)
    assert claim.judge(judged) == outcome
    assert {config.content_key() for config in claim.configs} == set(judged.seconds), "what is judged runs, and no more"


def test_rivals_of_an_answer_are_what_its_study_saw_and_what_quiet_runs_found() -> None:
    answer = answer_of(verdict="not_faster", best={"config": plain(SLOW)})
    assert claim_of(tune_run(answer), None).rivals == (FAST,), "the fastest search run, which was not recommended"
    assert set(claim_of(tune_run(answer), OTHER).rivals) == {FAST, OTHER}
    untried = OTHER.model_copy(update={"micro_batch": 4})
    assert claim_of(tune_run(answer), untried).rivals == (FAST,), "the study never tried it and claims nothing of it"


def test_the_reference_is_what_most_quiet_runs_confirm() -> None:
    def confirmed(config: TrialConfig, load: float = 0.0, verdict: str = "confirmed") -> TuneRun:
        return tune_run(answer_of(best={"config": plain(config)}, verdict=verdict), load)

    runs = [confirmed(FAST), confirmed(OTHER), confirmed(FAST), *[confirmed(OTHER, 1.4)] * 3]
    assert reference_of(runs) == FAST
    assert reference_of([confirmed(FAST, verdict="undecided"), tune_run(None)]) is None


def test_the_report_counts_each_load() -> None:
    wrong = tune_run(answer_of("run again, too: trial 2; trial 1 was the fastest there"), 1.4)
    runs = [tune_run(answer_of()), wrong, replace(tune_run(None, 1.4), error="too busy")]
    claims = [claim_of(run, None) for run in runs]
    result = busy.report(runs, claims, truth(fast=1.0, slow=1.0))
    assert result["loads"] == [
        {"load": 0.0, "runs": 1, "right": 0, "undecided_or_busy": 0, "wrong": 1, "false_sentences": 0},
        {"load": 1.4, "runs": 2, "right": 0, "undecided_or_busy": 1, "wrong": 1, "false_sentences": 1},
    ]
    text = "\n".join(busy.lines(result | {"processor": "a processor", "versions": {}}))
    assert "load 1.4: 2 runs, 0 right, 1 undecided or busy, 1 wrong, 1 false sentences" in text
    assert "false: run again, too: trial 2" in text and "too busy" in text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--loads", "0,x"], "--loads (0,x) must be"),
        (["--loads", "1.4,1.4"], "--loads (1.4,1.4) must be"),
        (["--loads", "-1"], "--loads (-1) must be"),
        (["--loads", "nan"], "--loads (nan) must be"),
        (["--runs", "0"], "--runs (0) must be"),
        (["--rounds", "3"], "--rounds (3) must be"),
        (["--minutes", "0"], "--minutes (0) must be"),
        (["--repo", "/nowhere"], "--repo (/nowhere) has no"),
    ],
)
def test_an_option_that_cannot_be_measured_with_is_named(arguments: list[str], part: str, capsys) -> None:
    assert busy.main(arguments) == 2
    assert part in capsys.readouterr().err


def test_so_many_processes_as_needed_burn_equal_fractions() -> None:
    assert fractions(0) == []
    assert fractions(0.7) == [0.7]
    assert fractions(2.8) == pytest.approx([2.8 / 3] * 3)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return re.search(r"^State:\s+[^Z]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None
    except OSError:
        return False


def test_foreign_load_ends_with_its_context() -> None:
    with pytest.raises(KeyboardInterrupt), foreign_load(0.1, "bursts") as pids:
        assert all(map(is_alive, pids))
        raise KeyboardInterrupt
    assert pids and not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, wide(signal.SIGINT), signal.SIGTERM])
def test_foreign_load_ends_with_its_benchmark_however_that_ends(number: int) -> None:
    code = "\n".join(
        (
            "import signal, time",
            # A shell in the background has its children ignore it.
            "signal.signal(signal.SIGINT, signal.default_int_handler)",
            "from benchmarks.busy.foreign_load import foreign_load",
            "with foreign_load(0.1, 'steady') as pids:",
            "    print(*pids, flush=True)",
            "    time.sleep(600)",
        )
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        pids = [int(text) for text in output.readline().split()]
    assert pids
    os.kill(parent.pid, number)
    parent.wait(60)
    until(lambda: not any(map(is_alive, pids)), 60, "the foreign load ended")


def fake_checkout(folder: Path, body: str) -> Path:
    """Checkout whose command `tune` is this body."""
    package = folder / "checkout" / "shardtune" / "service" / "cli"
    package.mkdir(parents=True)
    for path in (package, package.parent, package.parent.parent):
        (path / "__init__.py").touch()
    (package / "__init__.py").write_text(f"import sys, time\ndef main():\n    {body}\n")
    return folder / "checkout"


def test_a_command_that_ends_without_an_answer_is_no_claim_and_is_not_run_again(tmp_path: Path) -> None:
    checkout = fake_checkout(tmp_path, "print('the machine is on fire', file=sys.stderr); sys.exit(4)")
    plan = Plan(tmp_path / "runs", checkout, 1.0)
    first = tune_beside(plan, 0, 1)
    assert (first.answer, first.error) == (None, "the machine is on fire")
    assert tune_beside(replace(plan, repository=tmp_path / "nowhere"), 0, 1) == first


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    # A shell in the background has its children ignore the signal, and the benchmark would wait for half a minute.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    checkout = fake_checkout(tmp_path, f"{heeds}; print('still here', file=sys.stderr, flush=True); time.sleep(600)")
    run = tune_beside(Plan(tmp_path / "runs", checkout, 0.05), 0, 2)
    assert (run.answer, run.kind) == (None, "bursts") and "ended by the benchmark" in run.error


@pytest.mark.parametrize("number", [wide(signal.SIGKILL), signal.SIGTERM])
def test_the_command_and_the_load_end_with_the_benchmark(tmp_path: Path, number: int) -> None:
    body = "import os; open('pid.new', 'w').write(str(os.getpid())); os.rename('pid.new', 'pid'); time.sleep(600)"
    checkout = fake_checkout(tmp_path, body)
    (checkout / "examples").mkdir()
    (checkout / "examples" / "llama-tiny.json").write_text("{}")
    arguments = ["--loads", "0.1", "--runs", "1", "--repo", str(checkout), "--folder", str(tmp_path / "runs")]
    benchmark = subprocess.Popen([sys.executable, "-m", "benchmarks.busy", *arguments])
    pid_file = tmp_path / "runs" / "load-0.1-run-1" / "pid"
    until(pid_file.exists, 120, "the command runs")
    pids = [int(pid_file.read_text()), *children(benchmark.pid)]
    assert len(set(pids)) == 2, "the command and one process of load"
    os.kill(benchmark.pid, number)
    assert benchmark.wait(120) == (130 if number == signal.SIGTERM else -number)
    until(lambda: not any(map(is_alive, pids)), 60, "the command and the load ended")


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

"""Output about a study, for people and programs: the JSON object, the summary, the lines and the table."""

import re
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, FinalComparison, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.verdicts import AgainstDefault, OpenVerdict, WholeStepCheck
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.trial import Attempt, Rejection, Run, Trial, TrialState
from shardtune.service.cli import summary
from shardtune.service.cli.answer_to_share import page, picture
from shardtune.service.cli.tune import job, live_table
from shardtune.service.cli.tune.progress_lines import LineView
from shardtune.service.wording import disambiguate, study_words
from shardtune.service.wording.progress import activity_words
from tests.support.values.synthetic_studies import with_adapter, with_muon
from tests.support.values.tuner_inputs import measured

CPU = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
DDP, ZERO = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=ZeroConfig(stage=2), micro_batch=4)


def contender(number: int, config: TrialConfig, rate: float) -> Contender:
    return Contender(
        trial_number=number, config=config, description=config.describe(), tokens_per_s_per_gpu=rate,
        peak_allocated_gib=0.41, peak_reserved_gib=None, runs=5,
    )  # fmt: skip


def study(**changes: Any) -> Study:
    spec = StudySpec(
        model=preset("llama-tiny"), workload=Workload(sequence_length=64, global_batch=16), budget=Budget(max_trials=8)
    )
    values = {
        "study_id": "study-1", "state": StudyState.RUNNING, "phase": StudyPhase.SEARCH, "spec": spec, "cluster": CPU,
        "trials": {"complete": 7, "infeasible": 1, "failed": 0}, "rejected": 3, "gpu_seconds": 40,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    return Study.model_validate(values | changes)


def trial(number: int, state: TrialState, **changes: Any) -> Trial:
    config = ZERO if number else DDP
    return Trial(
        number=number, state=state, origin="default", config=config, description=config.describe(), **changes
    )  # fmt: skip


def _reason(config: TrialConfig, needed: float) -> str:
    # As the memory gate words it.
    return f"{config.describe()}: holds at least {needed} GiB"


def rejected(config: TrialConfig, needed: float) -> Rejection:
    return Rejection(config=config, needed_gib=needed, available_gib=4, reason=_reason(config, needed))


CONFIRMED = StudyResult(
    best=contender(1, ZERO, 1234.5).model_copy(update={"spread": (1200.0, 1260.0)}), baseline=contender(0, DDP, 942.0),
    speedup=Speedup(value=1.31, ci95=(1.27, 1.35), pairs=8), verdict=Verdict.CONFIRMED,
    search_runs=9, disturbed_search_runs=2, final_comparison=FinalComparison(
        number=1, candidates=(1, 2, 3, 4), pairs=8, disturbed_pairs=1, runs=22, gpu_seconds=190
    ),
)  # fmt: skip
UNBEATEN = StudyResult(
    best=contender(0, DDP, 942.0), baseline=contender(0, DDP, 942.0), candidate=contender(1, ZERO, 950.0),
    speedup=Speedup(value=1.01, ci95=(0.97, 1.05), pairs=5), verdict=Verdict.NOT_FASTER,
)  # fmt: skip


def test_the_json_object_has_exactly_the_documented_keys() -> None:
    answer = summary.as_json(study(), CONFIRMED, [], ["best/config.json"])
    assert list(answer) == [
        "study_id",
        "best",
        "baseline",
        "speedup",
        "verdict",
        "undecided",
        "too_busy",
        "against_defaults",
        "trust",
        "final_comparison",
        "whole_steps",
        "search_runs",
        "resume_check",
        "sustained",
        "projection",
        "recipes",
        "trials",
        "exports",
    ]
    assert set(answer["best"]) == {"config", "tokens_per_s_per_gpu", "peak_allocated_gib", "peak_reserved_gib"}
    assert answer["best"].keys() == answer["baseline"].keys()
    assert TrialConfig.model_validate(answer["best"]["config"]) == ZERO
    assert answer["speedup"] == {"value": 1.31, "ci95": [1.27, 1.35]}
    assert answer["final_comparison"] == {
        "number": 1, "candidates": [1, 2, 3, 4], "pairs": 8, "disturbed_pairs": 1, "runs": 22, "gpu_seconds": 190.0,
        "uneven_pairs": 0, "disturbed_runs": 0
    }  # fmt: skip
    assert answer["search_runs"] == {"measured": 9, "disturbed": 2}
    assert (answer["verdict"], answer["trials"]) == ("confirmed", {"complete": 7, "infeasible": 1})


def test_an_unconfirmed_challenger_is_the_candidate_and_the_baseline_is_best() -> None:
    answer = summary.as_json(study(), UNBEATEN)
    assert (answer["verdict"], answer["best"]) == ("not_faster", answer["baseline"])
    assert answer["candidate"]["tokens_per_s_per_gpu"] == 950.0
    assert "exports" not in answer


def test_an_undecided_verdict_says_what_would_settle_it_and_why_the_answer_can_be_believed() -> None:
    noisy = Speedup(value=1.65, ci95=(0.86, 5.81), pairs=7, ratios=(0.86, 1.5, 1.6, 1.65, 1.7, 2.0, 5.81))
    settle = OpenVerdict(pairs=7, won_pairs=6, more_pairs=3, disturbed_runs=2)
    beside = AgainstDefault(
        trial_number=2,
        description="DDP, micro batch 8",
        micro_batches=(1, 8),
        tokens_per_s_per_gpu=900,
        runs=1,
        ratio=1.05,
    )
    changed = UNBEATEN.model_copy(
        update={"verdict": Verdict.UNDECIDED, "speedup": noisy, "undecided": settle, "against_defaults": (beside,)}
    )
    text = summary.as_text(study(), changed)
    for words in (
        "undecided: keep",
        "won 6 of 7 pairs",
        "3 more pairs would confirm it",
        "other programs disturbed 2 of their 14 runs",
    ):
        assert words in text
    assert "1.05x the speed of DDP, micro batch 8" in text and "trust       !" in text
    assert "verdict     undecided: keep" in text and "speed-up " not in text, "no speed-up is claimed"

    answer = summary.as_json(study(), changed)
    assert answer["undecided"]["more_pairs"] == 3 and answer["against_defaults"][0]["micro_batches"] == [1, 8]
    assert any(reason["tone"] == "warn" for reason in answer["trust"])


def test_the_page_to_share_has_verdict_configurations_changes_and_reasons() -> None:
    changes = "# Changes: DDP → ZeRO\n\n| setting | today |\n|---|---|\n"
    text = page.as_markdown(study(), UNBEATEN, (), changes)
    for words in ("# ", "**not faster", "| recommended | ", "| fastest candidate | ", "## Changes: DDP", "## Reasons"):
        assert words in text
    assert "Changes" not in page.as_markdown(study(), UNBEATEN, (), None)


def test_the_page_to_share_says_which_speeds_it_lists() -> None:
    whole = WholeStepCheck(
        trial_number=0,
        accumulations=(2, 4),
        micro_batches=32,
        step_time_s=1.0,
        extended_step_time_s=1.0,
        extension_error=0.0,
        is_confirmed=True,
    )
    checked = UNBEATEN.model_copy(update={"whole_steps": (whole,)})
    shown = page.as_markdown(study(), checked, (), None)
    assert "| tokens/s/GPU |" in shown and "baseline 942 tokens/s/GPU in the run that timed whole steps" in shown
    assert "candidate 950 tokens/s/GPU in " in shown and "speeds, which" in shown
    assert "| tokens/s/GPU, median of all runs |" in page.as_markdown(study(), UNBEATEN, (), None)


def test_the_picture_to_share_is_a_drawing_that_loads_nothing_and_runs_nothing() -> None:
    named = study().spec.model.model_copy(update={"name": "a <script>alert(1)</script>\x1b[31m & b"})
    spec = study().spec.model_copy(update={"model": named})
    drawing = picture.as_svg(study(spec=spec), UNBEATEN, ())
    root = ElementTree.fromstring(drawing)
    shown = "".join(root.itertext()).replace("\xa0", " ")
    assert root.tag.endswith("svg") and not any(element.tag.endswith("script") for element in root.iter())
    assert "http" not in drawing.replace("http://www.w3.org/2000/svg", "")
    for words in ("Not faster", "recommended", "fastest candidate", "sequence 64"):
        assert words in shown, words


@pytest.mark.parametrize("form", ["page", "picture"])
def test_what_is_shared_names_an_adapter_and_an_optimizer_other_than_the_default(form: str) -> None:
    def shown(of: Study) -> str:
        if form == "page":
            return page.as_markdown(of, UNBEATEN, (), None)
        return _text_of(picture.as_svg(of, UNBEATEN, ()))

    adapted, muon = with_adapter(study(), {"kind": "lora", "rank": 8}), with_muon(study())
    assert ", LoRA r=8, on" in shown(adapted) and ", Muon, on" in shown(muon)
    assert "LoRA" not in shown(study()) and "AdamW" not in shown(study())


def _text_of(drawing: str) -> str:
    return "".join(ElementTree.fromstring(drawing).itertext()).replace("\xa0", " ")


def test_what_a_trial_tests_has_the_names_that_people_know_knobs_by() -> None:
    tests = study_words.describe_change("checkpoint_every 3 instead of 1; malloc keep instead of default; and 2 more")
    assert (
        tests
        == "checkpointing, every 3 instead of 1; freed host memory kept by the process instead of returned to the system; and 2 more"
    )
    tests = study_words.describe_change(
        "static_graph True instead of False; reduce_bucket_size 25000000 instead of 500000000"
    )
    assert tests == "with static graph; reduce bucket size 25 M instead of 500 M"
    assert study_words.describe_change("threads 1 instead of 0") == "threads 1 instead of cores divided by ranks"
    assert study_words.describe_change("the fastest by prediction") == "the fastest by prediction"
    assert study_words.describe_change("fsdp2 instead of zero") == "FSDP2 instead of ZeRO"


def test_trials_that_read_alike_are_told_apart_by_what_they_differ_in():
    other = DDP.model_copy(update={"strategy": DdpConfig(bucket_cap_mb=50)})
    of_trials = disambiguate.describe_trials(
        [trial(0, TrialState.COMPLETE), trial(2, TrialState.COMPLETE).model_copy(update={"config": other})]
    )
    assert of_trials[0] != of_trials[2] and "bucket, MiB 50" in disambiguate.distinct_descriptions([DDP, other])[1]


def test_nothing_to_compare_gives_a_null_speedup() -> None:
    alone = UNBEATEN.model_copy(update={"speedup": None, "candidate": None})
    assert summary.as_json(study(), alone)["speedup"] is None
    assert "nothing to compare" in summary.as_text(study(), alone)


def test_the_summary_says_what_won_by_how_much_and_where_it_is() -> None:
    text = summary.as_text(study(), CONFIRMED, [], [], ["best/config.json"], "best/launch.sh --steps 10")
    for words in (
        "ZeRO-2, micro batch 4: 1,234",
        "verdict     confirmed: 1.31x as fast as the baseline (95 % interval 1.27x to 1.35x)",
        "1,200 to 1,260",
        "took 22 validation runs, failed ones included: 190 GPU-seconds",
        "confirmed",
        "3 configurations rejected",
        "best/launch.sh",
    ):
        assert words in text


def test_costs_are_those_of_all_final_comparisons_only_after_a_second_one() -> None:
    """A study numbers its final comparisons from 1: the words stood in every summary."""
    first = CONFIRMED.final_comparison
    assert first is not None and first.number == 1
    again = CONFIRMED.model_copy(update={"final_comparison": first.model_copy(update={"number": 3})})
    text = summary.as_text(study(), again)
    assert "took 22 validation runs in all final comparisons of the study, failed ones included" in text


def test_a_remark_tells_the_gain_from_the_quotient_of_the_two_speeds() -> None:
    remark = "; the gain is the median of the pairs, not the quotient of these speeds"
    row = summary.as_text(study(), CONFIRMED).splitlines()[2]
    assert row == "baseline    DDP, micro batch 1: 942 tokens/s/GPU, 0.41 GiB allocated at the peak", (
        "1234.5 / 942 is 1.31"
    )
    other = CONFIRMED.model_copy(update={"speedup": Speedup(value=1.28, ci95=(1.27, 1.35), pairs=8)})
    assert summary.as_text(study(), other).splitlines()[2] == row + remark
    assert remark not in summary.as_text(study(), CONFIRMED.model_copy(update={"speedup": None}))


def test_a_name_that_several_trials_have_gets_the_number_and_the_settings_that_differ() -> None:
    """The best of a study had exactly the name of a trial that lost."""
    other = ZERO.model_copy(update={"strategy": ZeroConfig(stage=2, overlap_comm=False)})
    assert other.describe() == ZERO.describe() and other != ZERO
    trials = [trial(number, TrialState.COMPLETE) for number in range(3)]
    trials[2] = trials[2].model_copy(update={"config": other})
    best, baseline = summary.as_text(study(), CONFIRMED, trials).splitlines()[1:3]
    assert best.startswith("best        trial 1, ZeRO-2, micro batch 4 (overlap")
    assert baseline.startswith("baseline    DDP, micro batch 1 (a documented default): ")
    assert "trial 1" not in summary.as_text(study(), CONFIRMED, trials[:2]).splitlines()[1]


def test_a_busy_machine_leaves_the_same_state_with_and_without_a_baseline_of_the_users() -> None:
    state = "too busy: no candidate is shown to be faster on a quiet machine; "
    busy = {"verdict": Verdict.TOO_BUSY}
    kept, faster = UNBEATEN.model_copy(update=busy), CONFIRMED.model_copy(update=busy)
    assert summary.as_text(study(), kept).startswith(f"verdict     {state}keep the baseline (so far 1.01x")
    now = "for now, the candidate is recommended, as it was faster in the pairs"
    assert summary.as_text(study(), faster).startswith(f"verdict     {state}{now} (so far 1.31x")


def test_the_page_to_share_recommends_nothing_that_a_busy_machine_left_open() -> None:
    busy = CONFIRMED.model_copy(update={"verdict": Verdict.TOO_BUSY})
    text = page.as_markdown(study(), busy, (), None)
    assert "| candidate | ZeRO-2" in text and "| recommended |" not in text
    assert "| recommended | ZeRO-2" in page.as_markdown(study(), CONFIRMED, (), None)


def test_the_summary_begins_with_the_verdict_and_names_speeds_before_it_says_how_they_were_measured() -> None:
    story, measured = summary.as_text(study(), CONFIRMED).split("\nmeasured")
    assert story.startswith("verdict     confirmed") and story.count("tokens/s/GPU") == 2
    assert not re.search(r"\d+ (paired |validation |search )?(runs|pairs)\b", story)
    assert "942 tokens/s/GPU in 5 runs" in measured and "8 paired runs" in measured


def test_a_kept_baseline_is_named_once() -> None:
    rows = summary.as_text(study(), UNBEATEN).splitlines()
    assert rows[0] == (
        "verdict     not faster: keep the baseline; the fastest candidate reached 1.01x its speed (95 % interval 0.97x to 1.05x)"
    )
    assert rows[1].startswith("best        the baseline, DDP, micro batch 1: 942 tokens/s/GPU, ")
    assert rows[2].startswith("candidate   ZeRO-2, micro batch 4: ") and "tokens" not in rows[2]


def test_lines_tell_each_event_once_with_its_reason() -> None:
    lines: list[str] = []
    view = LineView(lines.append)
    too_much = Failure(kind=FailureKind.OVER_LIMIT, message="took 5.1 GiB\nof 4.0")
    running = [trial(0, TrialState.RUNNING)]
    ended = [trial(0, TrialState.INFEASIBLE, failure=too_much)]
    for trials in (running, running, ended, ended):
        view.show(study(), trials, [], 5.0)
    assert len(lines) == 2
    assert lines[1] == "trial 0 (1 of 8): DDP, micro batch 1: infeasible, over_limit: took 5.1 GiB of 4.0"


def test_a_run_that_other_programs_disturbed_is_told_once() -> None:
    """The minutes it takes are seen to go, and nothing else would say where."""
    lines: list[str] = []
    view = LineView(lines.append)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cause = "other programs kept 0.7 of 2 cores busy"
    lost = Attempt(
        attempt=1,
        worker="w",
        started_at=noon,
        finished_at=noon,
        end="disturbed",
        failure_message=cause,
        gpu_seconds=9.0,
    )
    run = Run(run_id="r", purpose="validation", final_comparison=1, state=TrialState.WAITING, attempts=(lost,))
    trials = [trial(0, TrialState.COMPLETE, runs=(run,))]
    view.show(study(), [], [], 1.0)
    for _ in range(2):
        view.show(study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1), trials, [], 5.0)
    reported = [line for line in lines if "disturbed" in line]
    assert reported == [f"disturbed, does not count: validation run of trial 0, attempt 1 ({cause})"]


def lines_of_a_disturbed_trial(marks: dict[str, Any]) -> tuple[str, str]:
    """Lines about the search run and the validation run of a trial that were both disturbed."""
    run = measured(100.0).model_copy(update=marks)
    runs = [
        Run(run_id=purpose, purpose=purpose, final_comparison=number, state=TrialState.COMPLETE, measurement=run)
        for purpose, number in (("search", None), ("validation", 1))
    ]
    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [], [], 1.0)
    view.show(study(), [trial(0, TrialState.COMPLETE, tokens_per_s_per_gpu=100.0, runs=runs[:1])], [], 3.0)
    comparing = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1)
    view.show(comparing, [trial(0, TrialState.COMPLETE, tokens_per_s_per_gpu=100.0, runs=runs)], [], 5.0)
    searched, validated = [line for line in lines if "(disturbed" in line and " tokens/s/GPU" in line]
    return searched, validated


def test_no_line_claims_that_a_disturbed_run_counts_before_its_pair_is_judged() -> None:
    busy = {"disturbed": "other programs kept 0.7 of 2 cores busy", "cores_left": 1.3}
    for line in lines_of_a_disturbed_trial(busy):
        assert "(disturbed)" in line and "counts" not in line


def test_no_line_blames_other_programs_where_only_the_spread_shows_a_disturbance() -> None:
    """A worker in a container may see no other program; the service then judges how far the windows lie apart."""
    for line in lines_of_a_disturbed_trial({"disturbed": "its timed windows lie apart by ±30% of the step time"}):
        assert "(disturbed)" in line and "other programs" not in line
    assert study_words.count_disturbed(3, 12) == "3 of 12 search runs were disturbed"


def test_the_end_of_the_search_follows_the_trial_that_ended_it() -> None:
    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [trial(7, TrialState.RUNNING)], [], 1.0)
    used_up = study(reason="all 8 trials of the budget are used", phase=StudyPhase.FINAL_COMPARISON)
    view.show(used_up, [trial(7, TrialState.COMPLETE, tokens_per_s_per_gpu=9.0)], [], 2.0)
    assert [line.split(":")[0] for line in lines[1:3]] == ["trial 7 (8 of 8)", "all 8 trials of the budget are used"]


def test_lines_of_validation_runs_say_how_long_the_study_still_takes() -> None:
    """A comparison of 17 minutes began with "about 11 min left", and then said nothing more."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    took = Attempt(attempt=1, worker="w", started_at=noon, finished_at=noon, end="complete", gpu_seconds=20.0)
    runs = [
        Run(run_id=purpose, purpose=purpose, final_comparison=1, state=TrialState.COMPLETE, attempts=(took,))
        for purpose in ("search", "validation")
    ]
    comparing = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1, final_comparison_runs=48)
    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [], [], 1.0)
    view.show(comparing, [trial(0, TrialState.COMPLETE, runs=tuple(runs))], [], 5.0)
    (line,) = [line for line in lines if line.startswith("validation run 1 of at most 48")]
    assert re.search(r" tokens/s/GPU \(about .* left\)$", line)


def test_a_resumed_study_is_summed_up_not_told_again() -> None:
    lines: list[str] = []
    trials = [trial(0, TrialState.COMPLETE), trial(1, TrialState.RUNNING)]
    LineView(lines.append).show(study(), trials, [rejected(DDP, 5.0)], 1.0)
    assert lines == ["1 trial ended earlier", "trial 1 (2 of 8): ZeRO-2, micro batch 4: running"]


def test_why_a_study_waits_is_told_once_and_stands_below_the_table() -> None:
    """Without it the command would seem to hang."""
    lines: list[str] = []
    view = LineView(lines.append)
    waits = study(reason="waiting for a worker: w has torch 3 instead of 2; restore it")
    for state in (study(), waits, waits, study(), study()):
        view.show(state, [], [], 1.0)
    assert lines == ["waiting for a worker: w has torch 3 instead of 2; restore it", "the study goes on"]
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(live_table.render(waits, [], [], 1.0, rows=5))
    assert "why   waiting for a worker: w has torch 3" in captured.get()


def test_validation_runs_of_a_former_final_comparison_are_not_counted_again() -> None:
    def fresh(*final_comparisons: int) -> list[Trial]:
        runs = tuple(
            Run(run_id=f"r{i}", purpose="validation", final_comparison=number, state=TrialState.COMPLETE)
            for i, number in enumerate(final_comparisons)
        )
        return [trial(0, TrialState.COMPLETE, runs=runs)]

    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [], [], 1.0)
    for number, trials in ((1, fresh(1)), (1, fresh(1, 1)), (2, fresh(1, 1)), (3, fresh(1, 1, 3))):
        view.show(study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=number), trials, [], 1.0)
    assert [line.split(" of ")[0] for line in lines if line.startswith("validation run")] == [
        "validation run 1",
        "validation run 2",
        "validation run 1",
    ]
    extended = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=3)
    assert "run 2 of at most" in activity_words.activity(extended, fresh(1, 1, 3))


def test_where_one_configuration_is_left_no_run_is_counted() -> None:
    """`run 1 of at most 0` was said."""
    alone = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison_runs=0)
    assert "there is only one configuration" in activity_words.activity(alone, [trial(0, TrialState.COMPLETE)])
    console = Console(width=120)
    with console.capture() as captured:
        console.print(live_table.render(alone, [trial(0, TrialState.COMPLETE)], [], 1.0, rows=5))
    assert "at most" not in captured.get()


def test_the_table_fits_the_screen_and_keeps_the_best() -> None:
    trials = [trial(number, TrialState.COMPLETE, tokens_per_s_per_gpu=float(number)) for number in range(30)]
    shown = study(best_so_far=contender(2, ZERO, 99.0), phase=StudyPhase.SEARCH)
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(live_table.render(shown, trials, [rejected(DDP, 5.0)], 12.0, rows=10))
    text = captured.get()
    assert len(text.splitlines()) <= 19
    assert "best so far" in text and "20 earlier" in text and "12 s so far" in text


def test_one_large_peak_leaves_the_small_ones_of_the_table_their_digits() -> None:
    peaks = (0.00312, 0.00274, 12.5)
    trials = [trial(number, TrialState.COMPLETE, peak_allocated_gib=peak) for number, peak in enumerate(peaks)]
    console = Console(width=120)
    with console.capture() as captured:
        console.print(live_table.render(study(), trials, [], 1.0, rows=5))
    assert all(peak in captured.get() for peak in ("3.19 MiB", "2.81 MiB", "12.5 GiB"))


@pytest.mark.parametrize(
    ("phase", "progress", "words"),
    [
        (StudyPhase.MODEL_SUMMARY, None, "counting the model's parameters"),
        (StudyPhase.SEARCH, Progress(phase="warming_up", step=4), "searching, trial 1: warming up, step 4"),
        (
            StudyPhase.FINAL_COMPARISON,
            None,
            "final comparison, run 1 of at most 66 (up to 18 runs that choose what to pair, then up to 24 pairs), trial 1: starting ranks",
        ),
    ],
)
def test_the_activity_is_in_words(phase: StudyPhase, progress: Progress | None, words: str) -> None:
    purpose = "validation" if phase is StudyPhase.FINAL_COMPARISON else "search"
    run = Run(run_id="r", purpose=purpose, state=TrialState.RUNNING, progress=progress)
    assert words in activity_words.activity(study(phase=phase), [trial(1, TrialState.RUNNING, runs=(run,))])


def test_what_the_memory_gate_rejected_is_told_with_its_reason() -> None:
    lines: list[str] = []
    view, rejections = (
        LineView(lines.append),
        [rejected(DDP, 6.0), rejected(DDP, 5.0), rejected(ZERO, 4.5), rejected(ZERO, 4.6)],
    )
    view.show(study(), [], rejections[:1], 1.0)
    view.show(study(), [], rejections, 1.0)
    assert lines == [
        f"rejected by the memory gate: {study_words.rejection_text(rejection)}" for rejection in rejections
    ]
    assert "DDP, micro batch 1: holds at least 6.0 GiB" in lines[0]
    nearest = ["DDP, micro batch 1: holds at least 5.0 GiB", "ZeRO-2, micro batch 4: holds at least 4.5 GiB"]
    assert study_words.closest_rejections(rejections) == nearest


def test_the_summary_says_why_a_configuration_did_not_count() -> None:
    too_much = Failure(kind=FailureKind.OVER_LIMIT, message="took 5.1 GiB of 4.0")
    trials, rejections = [trial(0, TrialState.INFEASIBLE, failure=too_much)], [rejected(ZERO, 6.0)]
    text = summary.as_text(study(), CONFIRMED, trials, rejections)
    assert "infeasible  DDP, micro batch 1: over_limit: took 5.1 GiB of 4.0" in text
    assert "rejected    ZeRO-2, micro batch 4: holds at least 6.0 GiB" in text


def test_the_summary_says_when_nothing_but_the_starting_configurations_ran() -> None:
    seed = trial(0, TrialState.COMPLETE)
    sampled = seed.model_copy(update={"origin": "sampler"})
    assert "the search never began" in str(study_words.failure_rows([seed], []))
    assert "the search never began" not in str(study_words.failure_rows([seed, sampled], []))


@pytest.mark.parametrize(
    ("trials", "rejected", "state", "code"),
    [
        ({"infeasible": 3}, 0, StudyState.FAILED, 3),
        ({}, 36, StudyState.FAILED, 3),
        ({"complete": 1}, 0, StudyState.FAILED, 3),
        ({"infeasible": 1, "failed": 2}, 0, StudyState.FAILED, 4),
        ({}, 0, StudyState.FAILED, 4),
        ({"complete": 1}, 0, StudyState.CANCELLED, 4),
    ],
)
def test_an_end_without_a_result_tells_whose_fault_it_is(
    trials: dict[str, int], rejected: int, state: StudyState, code: int
) -> None:
    ended = study(trials=trials, rejected=rejected, state=state, reason="no configuration is feasible: why")
    assert job.error_without_result(ended, []).exit_code == code


def test_an_extension_that_fails_is_an_error_which_says_that_the_earlier_answer_stays() -> None:
    failed = study(result=CONFIRMED, trials={"complete": 3}, state=StudyState.FAILED, reason="the search failed")
    error = job.error_without_result(failed, [])
    assert (error.exit_code, str(error)) == (
        4,
        "extending the study failed: the search failed; its earlier answer stays",
    )


def test_the_reason_beside_an_earlier_answer_is_that_of_the_extension() -> None:
    def counts(**changes: Any) -> str:
        return re.search(r"^trials +(.*)$", summary.as_text(study(result=CONFIRMED, **changes), CONFIRMED), re.M)[1]  # type: ignore[index]

    failed = counts(state=StudyState.FAILED, phase=StudyPhase.DONE, reason="planning failed")
    assert failed.endswith("; extending the study failed: planning failed")
    assert counts(reason="waiting for a worker: why").endswith("before they ran; waiting for a worker: why")
    complete = counts(state=StudyState.COMPLETE, phase=StudyPhase.DONE, reason="all 8 trials are used")
    assert complete.endswith("; search ended: all 8 trials are used")

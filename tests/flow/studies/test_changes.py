"""The files of a result say what changes in the user's own file, and what each change is worth, and from what it is known."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_result import Speedup, StudyResult, Verdict
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.service.studies.changes import user_file
from shardtune.service.studies.changes.effects import changes_of, product_of
from shardtune.service.studies.changes.page import changes_page
from shardtune.service.studies.changes.study_page import comparable_speeds
from shardtune.tuner.history import Observation
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, measurement, on_quiet_machine
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import measured

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 5000000},
    "bf16": {"enabled": False},
}
ZERO = {"backends": ["zero"], "knobs": {"malloc": "default", "stage": [1, 2]}}


def behave(_lease, task):
    """A larger micro batch is half as fast again; stage 2 a tenth."""
    stage = getattr(task.config.strategy, "stage", 1)
    speed = 1000.0 * (1.5 if task.config.micro_batch > 1 else 1.0) * (1.1 if stage == 2 else 1.0)
    return on_quiet_machine(measurement(speed))


def exported(client, **changes):
    SimulatedWorker(client, behave=behave).register()
    study_id = create(client, **changes)
    SimulatedWorker(client, behave=behave).register().work(400)
    return client.get(f"/v1/studies/{study_id}/export").json()["files"]


def config(**values):
    return TrialConfig.model_validate({"strategy": {"kind": "zero", "stage": 1}} | values)


def test_a_diff_of_the_users_deepspeed_json_names_changed_lines(quick_client):
    workload = SPEC["workload"] | {"precision": "fp32"}
    page = exported(quick_client, baseline=DEEPSPEED, space=ZERO, workload=workload)["changes.md"]
    assert "## In your DeepSpeed JSON" in page and "```diff" in page
    assert '-  "train_micro_batch_size_per_gpu": 1' in page
    assert "| setting | today | recommended | effect | known from |" in page and "micro_batch" in page


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_a_diff_of_training_arguments_checkpoints_as_the_recommended_configuration_does(name):
    """FSDP has a checkpointing of its own, beside which the Trainer rejects the argument."""
    ddp, fsdp2 = {"strategy": {"kind": "ddp"}}, {"strategy": {"kind": "fsdp2", "dp_shard": 2}}
    full = {"activation_checkpointing": "full"}

    def lines(today, best, **file):
        study = study_of()
        spec = study.spec.model_copy(update={"baseline": {"output_dir": "out"} | file})
        sides = (contender_of(TrialConfig.model_validate(side)) for side in (today, best))
        answer = user_file.diff_of(study.model_copy(update={"spec": spec}), *sides)
        return {line for line in answer.diff.splitlines() if "checkpointing" in line and line[0] in "+-"}

    assert lines(fsdp2, fsdp2 | full, fsdp=True) == {'+    "activation_checkpointing": true'}
    assert lines(fsdp2 | full, fsdp2, fsdp=True, **{name: True}) == {f'-  "{name}": true'}
    assert lines(ddp, fsdp2) == {'+    "activation_checkpointing": false,'}
    assert f'-  "{name}": true' in {line.rstrip(",") for line in lines(ddp | full, fsdp2 | full, **{name: True})}
    every = lines(ddp | full, ddp | full | {"checkpoint_every": 2}, **{name: True})
    assert f'+  "{name}_kwargs": {{' in every
    assert lines(ddp | full, ddp, **{name: True}) == {f'-  "{name}": true'}


def test_a_default_that_stood_in_for_a_baseline_is_not_called_todays_configuration():
    study, sides = study_of(), (contender_of(config()), contender_of(config(micro_batch=4)))
    busy = StudyResult(
        baseline=sides[0],
        best=sides[1],
        speedup=Speedup(value=1.69, ci95=(1.57, 1.96), pairs=7),
        verdict=Verdict.TOO_BUSY,
    )
    page = changes_page(study, busy, {}, lambda _: None)
    assert "| setting | baseline | candidate |" in page and "recommended" not in page
    assert "in 7 paired runs (too busy: no candidate is shown to be faster on a quiet machine)." in page
    own = study.model_copy(update={"spec": study.spec.model_copy(update={"baseline": sides[0].config})})
    assert "| setting | today | candidate |" in changes_page(own, busy, {}, lambda _: None)
    confirmed = busy.model_copy(update={"verdict": Verdict.CONFIRMED})
    assert "| setting | today | recommended |" in changes_page(own, confirmed, {}, lambda _: None)
    replaced = busy.model_copy(update={"replaced_baseline": "out of memory"})
    assert "| setting | baseline | candidate |" in changes_page(own, replaced, {}, lambda _: None)


def test_no_page_is_written_where_nothing_changes(quick_client):
    def equal(_lease, task):
        return on_quiet_machine(measurement(1000.0))

    SimulatedWorker(quick_client, behave=equal).register()
    study_id = create(quick_client, baseline={"strategy": {"kind": "ddp"}})
    SimulatedWorker(quick_client, behave=equal).register().work(400)
    assert "changes.md" not in quick_client.get(f"/v1/studies/{study_id}/export").json()["files"]


def test_runs_that_differ_in_one_setting_measure_it_and_the_rest_is_predicted():
    today, best = config(), config(micro_batch=4, activation_checkpointing="full")
    speeds = {today: 100.0, config(micro_batch=4): 150.0, best: 160.0}
    measured = changes_of(today, best, speeds, lambda _: None)
    assert {change.name: (round(change.factor, 3), change.origin) for change in measured} == {
        "micro_batch": (1.5, "measured"),
        "activation_checkpointing": (round(160 / 150, 3), "measured"),
    }
    assert [(change.name, change.base) for change in measured] == [
        ("micro_batch", "baseline"), ("activation_checkpointing", "recommended"),
    ]  # fmt: skip
    assert product_of(measured) == pytest.approx(1.6)
    speeds.pop(config(micro_batch=4))
    predicted = changes_of(today, best, speeds, {best: 300.0, config(micro_batch=4): 200.0}.get)
    origins = {change.name: change.origin for change in predicted}
    assert origins == {"activation_checkpointing": "predicted", "micro_batch": "unknown"}
    assert product_of(predicted) is None, "no product without every factor"


def page_of(speeds, predicted=lambda _: None, speedup=None, verdict=Verdict.CONFIRMED):
    """`changes.md` of a study whose winner has another micro batch and full checkpointing."""
    sides = (contender_of(config()), contender_of(config(micro_batch=4, activation_checkpointing="full")))
    result = StudyResult(baseline=sides[0], best=sides[1], speedup=speedup, verdict=verdict)
    return changes_page(study_of(), result, speeds, predicted)


def test_effects_that_do_not_multiply_to_the_gain_are_stated_as_such():
    today, middle, best = config(), config(micro_batch=4), config(micro_batch=4, activation_checkpointing="full")
    gain = Speedup(value=1.2, ci95=(1.1, 1.3), pairs=7)
    page = page_of({today: 100.0, middle: 180.0, best: 120.0}, speedup=gain)
    assert "| `micro_batch` | 1 | 4 | 1.80x | measured, added alone to the baseline |" in page
    assert "| 0.67x | measured, removed alone from the recommended configuration |" in page
    assert "Their product before rounding is 1.20x; paired runs measured 1.20x for all changes together." in page
    assert "%" not in page.replace("95 %", ""), "a share of a gain that effects do not sum to"
    unknown = page_of({today: 100.0, middle: 180.0}, speedup=gain)
    assert "- unknown: no undisturbed search run tested this setting alone" in unknown and "product" not in unknown


def test_pairs_measured_a_single_change_whose_effect_no_search_run_shows():
    sides = contender_of(config()), contender_of(config(micro_batch=4))
    gain = Speedup(value=1.69, ci95=(1.57, 1.96), pairs=7)
    result = StudyResult(baseline=sides[0], best=sides[1], speedup=gain, verdict=Verdict.CONFIRMED)
    unknown = changes_page(study_of(), result, {}, lambda _: None)
    assert "- Paired runs measured the gain above, 1.69x, of this change alone." in unknown
    assert "no undisturbed search run tested this setting alone" in unknown and "more certain" not in unknown
    measured_too = changes_page(study_of(), result, {sides[0].config: 100.0, sides[1].config: 160.0}, lambda _: None)
    assert "1.69x, which is more certain than this effect." in measured_too


def test_each_predicted_effect_is_marked_and_never_called_measured():
    best = config(micro_batch=4, activation_checkpointing="full")
    page = page_of({}, {best: 300.0, config(micro_batch=4): 200.0, config(activation_checkpointing="full"): 100.0}.get)
    assert page.count("predicted, removed alone from the recommended configuration |") == 2
    assert "measured" not in page.split("- effect")[0].split("Together")[1].partition("\n")[2]
    assert "Their product before rounding is 4.50x." in page


@pytest.mark.parametrize(
    ("speeds", "gain", "verdict", "reasons"),
    [
        # Alone, neither of the two changes gains anything.
        ((300.0, 110.0, 100.0), 2.5, Verdict.TOO_BUSY, "count more than once, predicted effects may be wrong or the pairs ran"),
        ((300.0, 200.0, 100.0), 6.0, Verdict.CONFIRMED, "another one brings the same gain or predicted effects may be wrong;"),
        ((300.0, 200.0, 100.0), 4.3, Verdict.CONFIRMED, ""),
    ],
)  # fmt: skip
def test_a_product_far_from_the_gain_is_explained(speeds, gain, verdict, reasons):
    """4.19x stood beside 2.25x without a word."""
    best = config(micro_batch=4, activation_checkpointing="full")
    predicted = dict(zip((best, config(micro_batch=4), config(activation_checkpointing="full")), speeds, strict=True))
    page = page_of({}, predicted.get, Speedup(value=gain, ci95=(1.1, 9.0), pairs=7), verdict)
    assert ("They may differ because" in page) == bool(reasons) and reasons in page


def test_two_configurations_of_one_name_are_told_apart_by_their_trials():
    today = contender_of(TrialConfig(strategy=DdpConfig(bucket_cap_mb=25)))
    best = contender_of(TrialConfig(strategy=DdpConfig(bucket_cap_mb=12))).model_copy(update={"trial_number": 3})
    result = StudyResult(baseline=today, best=best, speedup=None, verdict=Verdict.CONFIRMED)
    title = changes_page(study_of(), result, {}, lambda _: None).partition("\n")[0]
    assert title == f"# Changes: trial {today.trial_number}, DDP, micro batch 1 → trial 3, DDP, micro batch 1"


def test_only_undisturbed_runs_that_were_timed_in_full_measure_a_change():
    def observed(number, state=TrialState.COMPLETE, **changes):
        run = measured(100.0).model_copy(update=changes)
        return Observation(number, config(micro_batch=number), TrialOrigin.SAMPLER, state, run)

    busy = "other programs kept 1.5 of 2 cores busy"
    runs = [
        observed(1),
        observed(2, disturbed=busy),
        observed(3, TrialState.PRUNED, is_pruned=True),
        observed(4, TrialState.INFEASIBLE),
    ]
    assert comparable_speeds(runs) == {config(micro_batch=1): 100.0}


def test_another_backend_is_one_change():
    today, best = config(), TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "micro_batch": 2})
    assert {change.name for change in changes_of(today, best, {}, lambda _: None)} == {"backend", "micro_batch"}


def test_the_page_names_changed_settings_that_the_users_file_cannot_hold(quick_client):
    def faster_with_jemalloc(lease, task):
        """A larger micro batch is half as fast again, kept memory a fifth."""
        outcome = behave(lease, task)
        factor = 1.2 if task.config.malloc == "keep" else 1.0
        return on_quiet_machine(measurement(factor * outcome.tokens_per_s_per_gpu))

    SimulatedWorker(quick_client, behave=faster_with_jemalloc).register()
    space = ZERO | {"knobs": {"malloc": ["default", "keep"], "stage": [1]}}
    workload = SPEC["workload"] | {"precision": "fp32"}
    study_id = create(quick_client, baseline=DEEPSPEED, space=space, workload=workload, budget={"max_trials": 12})
    SimulatedWorker(quick_client, behave=faster_with_jemalloc).register().work(400)
    page = quick_client.get(f"/v1/studies/{study_id}/export").json()["files"]["changes.md"]
    assert "`malloc` is not in this file: a DeepSpeed JSON has no key for it." in page
    assert "`micro_batch` is not in" not in page and "`train_snippet.py` and `launch.sh`" in page

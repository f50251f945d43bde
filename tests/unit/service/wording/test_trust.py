"""Reasons to trust an answer name the checks that were really made."""

import pytest

from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rank_reports import DiskRate
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.service.wording.result_runs import ResultRuns
from shardtune.service.wording.trust import trust
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.traced_shape import summary_of
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

DDP, ZERO = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=ZeroConfig(stage=2))
OTHER = TrialConfig(strategy=DdpConfig(bucket_cap_mb=50))


def numerics(
    *complete: TrialConfig,
    backends: tuple[str, ...] = ("ddp", "zero"),
    fresh: tuple[Measurement, ...] = (),
    script: str | None = None,
) -> tuple[str, str]:
    study, best = study_of(), contender_of(DDP)
    space = study.spec.space.model_copy(update={"backends": backends})
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    model = ModelSpec(name="mine", script=script) if script else study.spec.model
    changed = {"spec": study.spec.model_copy(update={"space": space, "model": model}), "result": result}
    reasons = trust(study.model_copy(update=changed), ResultRuns(complete, {0: fresh}))
    return next(
        (reason.tone, reason.text)
        for reason in reasons
        if "agree with those of" in reason.text or "confirms its losses" in reason.text
    )


def test_other_backends_that_agree_are_named() -> None:
    tone, text = numerics(DDP, ZERO, OTHER)
    assert tone == "good" and text.endswith("agree with those of DeepSpeed ZeRO")


def test_what_a_script_does_not_report_was_not_compared() -> None:
    run = measurement(1.0)
    assert "losses, gradient norms and weights agree" in numerics(DDP, ZERO, fresh=(run,))[1]
    steps = tuple(step.model_copy(update={"grad_norm": None, "parameter_sum": None}) for step in run.trajectory)
    silent = run.model_copy(update={"trajectory": steps})
    numeric = numerics(DDP, ZERO, fresh=(silent,), script="mine")[1]
    assert "losses (the script reports no gradient norms and no weights) agree with those of DeepSpeed ZeRO" in numeric
    assert "what else the script reports" in numerics(DDP, ZERO, script="mine")[1]


def test_one_backend_confirms_itself_by_another_configuration_and_it_is_said() -> None:
    tone, text = numerics(DDP, OTHER, backends=("ddp",))
    assert tone == "good" and "another backend" not in text
    assert text.endswith("agree with those of another configuration of DDP, the only backend here")


def test_an_answer_from_throttled_gpus_says_so() -> None:
    device = DeviceSeen(
        uuid="GPU-1", memory_before_gib=0, power_capped_fraction=None, samples=20, throttled_fraction=0.4,
        throttle_reasons=("software thermal slowdown",),
    )  # fmt: skip
    hot = measurement(1.0).model_copy(update={"conditions": Conditions(devices=(device,))})
    study, best = study_of(), contender_of(DDP)
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    reasons = trust(study.model_copy(update={"result": result}), ResultRuns((), {0: (measurement(1.0), hot)}))
    assert (
        "warn",
        "1 of the 2 runs of trial 0 had lowered clocks (the last: GPU GPU-1 was throttled in 40% of the run "
        "(software thermal slowdown)); a cooler machine may be faster",
    ) in [(reason.tone, reason.text) for reason in reasons]


@pytest.mark.parametrize(("model", "sequence", "is_told"), [("llama-tiny", 64, True), ("llama-3.1-8b", 4096, False)])
def test_a_study_that_is_predicted_launch_bound_says_so(model: str, sequence: int, is_told: bool) -> None:
    gpus = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
    study, best = study_of(model, "bf16-mixed", gpus, 16), contender_of(TrialConfig(strategy=Fsdp2Config(dp_shard=8)))
    shape = from_config(study.spec.model.trained_config, model)
    workload = study.spec.workload.model_copy(update={"sequence_length": sequence})
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    spec = study.spec.model_copy(update={"workload": workload})
    answered = study.model_copy(
        update={
            "spec": spec,
            "result": result,
            "model_summary": summary_of(shape).model_copy(update={"forward_flops_per_token": 1.0}),
        }
    )
    assert any("launch-bound" in reason.text for reason in trust(answered, ResultRuns())) == is_told
    on_cpu = answered.model_copy(update={"cluster": CPU})
    assert not any("launch-bound" in reason.text for reason in trust(on_cpu, ResultRuns()))


def test_nothing_is_said_of_trials_that_are_not_at_hand() -> None:
    study, best = study_of(), contender_of(DDP)
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    reasons = trust(study.model_copy(update={"result": result}), ResultRuns())
    assert [reason.text for reason in reasons] == ["measured in 5 runs, without paired runs"]


def test_a_note_about_the_request_is_no_reason_to_trust_the_answer() -> None:
    study, best = study_of(), contender_of(DDP)
    of_request, of_result = "budget.max_trials (4): raise it to 8", "no documented default is feasible"
    result = StudyResult(
        best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED, notes=(of_request, of_result)
    )
    reasons = trust(study.model_copy(update={"result": result, "warnings": (of_request,)}), ResultRuns())
    assert [reason.text for reason in reasons][-1] == of_result
    assert of_request not in [reason.text for reason in reasons]


def test_a_configuration_alone_is_confirmed_by_nothing() -> None:
    tone, text = numerics(DDP, backends=("ddp",))
    assert tone == "warn" and text.startswith("only one configuration was measured")


def test_what_checkpoints_cost_is_told_and_what_is_slow_about_them_instead() -> None:
    study, best = study_of(), contender_of(DDP)
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    disk = DiskRate(write_bytes_per_s=1e9, read_bytes_per_s=1e9)
    cheap = ResumeCheck(
        trial_number=0, outcome=ResumeOutcome.PASSED, steps_before=20, steps_after=5, save_s=2.0, load_s=1.0,
        checkpoint_bytes=10**9, checkpoint_files=3, writing_ranks=1, disk=disk, saving_fraction=0.00111,
    )  # fmt: skip
    slow = cheap.model_copy(update={"checkpoint_findings": ("waits",)})
    reported = [
        [
            (item.tone, item.text)
            for item in trust(study.model_copy(update={"result": changed}), ResultRuns())
            if "checkpoint" in item.text
        ]
        for changed in (result.model_copy(update={"resume_check": check}) for check in (cheap, slow))
    ]
    assert all("953.7 MiB saved in 3 files by 1 rank in 2.00 s" in text for ((_, text), _) in reported)
    assert reported[0][1] == (
        "quiet",
        "checkpoints: 0.11% of training time with a blocking save every 1,800 s",
    )
    assert reported[1][1] == ("warn", "checkpoints: waits")
    tiny = result.model_copy(update={"resume_check": cheap.model_copy(update={"saving_fraction": 0.00002})})
    reasons = trust(study.model_copy(update={"result": tiny}), ResultRuns())
    assert any("less than 0.01% of training time" in reason.text for reason in reasons)


def test_names_are_listed_as_in_a_sentence() -> None:
    assert [listed(list("abc"[:count])) for count in range(4)] == ["", "a", "a and b", "a, b and c"]

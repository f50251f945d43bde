"""What is said for believing an answer names what it was really held against."""

from shardtune.api_schemas.measurements import Measurement
from shardtune.api_schemas.models import ModelSpec
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies import StudyResult, Verdict
from shardtune.service.wording.trust import trust
from tests.support.made_up_studies import contender_of, study_of
from tests.support.simulated_worker import measurement

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
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.NOT_FASTER)
    model = ModelSpec(name="mine", script=script) if script else study.spec.model
    changed = {"spec": study.spec.model_copy(update={"space": space, "model": model}), "result": result}
    reasons = trust(study.model_copy(update=changed), complete, fresh)
    return next((reason.tone, reason.text) for reason in reasons if "trains the same thing" in reason.text)


def test_other_backends_that_agree_are_named() -> None:
    tone, text = numerics(DDP, ZERO, OTHER)
    assert tone == "good" and text.endswith("agree with those of DeepSpeed ZeRO")


def test_what_a_script_does_not_report_was_not_compared() -> None:
    run = measurement(1.0)
    assert "losses, gradient norms and weights agree" in numerics(DDP, ZERO, fresh=(run,))[1]
    steps = tuple(step.model_copy(update={"grad_norm": None, "parameter_sum": None}) for step in run.trajectory)
    silent = run.model_copy(update={"trajectory": steps})
    said = numerics(DDP, ZERO, fresh=(silent,), script="mine")[1]
    assert "losses (the script tells no gradient norms and no weights) agree with those of DeepSpeed ZeRO" in said
    assert "what else the script reports" in numerics(DDP, ZERO, script="mine")[1]


def test_one_backend_confirms_itself_by_another_configuration_and_it_is_said() -> None:
    for complete in ((DDP, OTHER), ()):
        tone, text = numerics(*complete, backends=("ddp",))
        assert tone == "good" and "another backend" not in text
        assert text.endswith("agree with those of another configuration of DDP, the only backend here")


def test_a_configuration_alone_is_confirmed_by_nothing() -> None:
    tone, text = numerics(DDP, backends=("ddp",))
    assert tone == "warn" and text.startswith("only one configuration was measured")

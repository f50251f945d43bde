"""A study's page leads to a plan only where a plan can use what the study measured."""

from urllib.parse import parse_qs, urlsplit

import pytest

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.targets import ProjectedConfig, StudyProjection
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.service.pages.views.new_study.form_fields import FormErrors
from shardtune.service.pages.views.plans.form import PlanForm, plan_request
from shardtune.service.pages.views.plans.study_link import plan_address
from tests.support.values.synthetic_studies import contender_of, study_of

CPU_RANKS = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
H100 = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)


def answered(cluster: Cluster = H100, **changes: object) -> Study:
    best = contender_of(TrialConfig(strategy=DdpConfig()))
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    study = study_of("llama-tiny", "bf16-mixed", cluster)
    return study.model_copy(update={"result": result, "spec": study.spec.model_copy(update=changes)})


def test_the_address_states_the_measured_gpus_and_multiples_of_them() -> None:
    study = answered(model=ModelSpec.model_validate("llama-3.1-8b"))
    fields = {name: value for name, (value,) in parse_qs(urlsplit(plan_address(study)).query).items()}
    assert fields == {
        "model": "llama-3.1-8b", "study": study.study_id, "gpus": "H100",
        "counts": "8, 16, 32, 64", "gpus_per_node": "8",
    }  # fmt: skip


def test_a_model_of_the_hub_is_named_with_the_commit_that_was_trained() -> None:
    model = ModelSpec.model_validate({"hub": "Qwen/Qwen3-8B@" + "a" * 40, "config": {"model_type": "qwen3"}})
    assert f"model=hub&hub=Qwen%2FQwen3-8B%40{'a' * 40}" in plan_address(answered(model=model))


def test_what_no_plan_can_use_has_no_address() -> None:
    assert not plan_address(answered(CPU_RANKS))
    assert not plan_address(answered(H100.model_copy(update={"gpu": "Home-made 9000"})))
    assert not plan_address(answered(model=ModelSpec(name="llama-tiny", config={"model_type": "llama"})))
    assert not plan_address(answered().model_copy(update={"result": None}))


@pytest.mark.parametrize("change", [{"float8": "tensorwise"}, {"optimizer": {"kind": "muon"}}])
def test_another_training_than_that_of_plans_has_no_address(change: dict[str, object]) -> None:
    study = answered(model=ModelSpec.model_validate("llama-tiny"))
    assert plan_address(study)
    workload = type(study.spec.workload).model_validate(study.spec.workload.model_dump(exclude_defaults=True) | change)
    assert not plan_address(study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})}))


def projected_to(target: Cluster, cluster: Cluster) -> Study:
    study = answered(cluster, model=ModelSpec.model_validate("llama-tiny"))
    assert study.result is not None
    one = Band(expected=1.0, low=0.9, high=1.1)
    best = ProjectedConfig(
        trial_number=0, config=study.result.best.config, description="DDP", scaled=(), measured_tokens_per_s_per_gpu=1.0,
        tokens_per_s_per_gpu=one, memory_gib=one, may_not_fit=False, chance_of_best=1.0, rank_measured=1, unseen=(),
    )  # fmt: skip
    projection = StudyProjection(
        cluster=target, global_batch=96, measured_gpus=cluster.world_size, doublings=2.0, best=best,
        order_changes=False, projected=1, only_at_target=0, too_large=0,
    )  # fmt: skip
    return study.model_copy(update={"result": study.result.model_copy(update={"projection": projection})})


@pytest.mark.parametrize(
    ("per_node", "target", "counts", "nodes"),
    [
        (6, {"nodes": 4, "gpus_per_node": 8}, "6, 24, 32, 48", "8"),
        (2, {"nodes": 4, "gpus_per_node": 6}, "2, 4, 24", "6"),
        (8, {"nodes": 2, "gpus_per_node": 128}, "8, 16, 32, 64", "8"),
        (128, {"nodes": 2, "gpus_per_node": 128}, "", ""),
    ],
)
def test_the_address_is_that_of_a_plan_whatever_the_nodes_of_the_target(
    per_node: int, target: dict[str, int], counts: str, nodes: str
) -> None:
    here = H100.model_copy(update={"gpus_per_node": per_node})
    address = plan_address(projected_to(H100.model_copy(update=target), here))
    fields = {name: value for name, (value,) in parse_qs(urlsplit(address).query).items()}
    assert (fields.get("counts", ""), fields.get("gpus_per_node", "")) == (counts, nodes)
    if fields:
        plan_request(PlanForm.model_validate(fields))


@pytest.mark.parametrize("driver", ["NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_a_slice_or_a_neighbour_of_a_product_has_no_address(driver: str) -> None:
    model = ModelSpec.model_validate("llama-tiny")
    assert not plan_address(answered(H100.model_copy(update={"gpu": driver}), model=model))


def test_a_price_may_name_the_kind_of_the_address_in_another_way() -> None:
    study = answered(model=ModelSpec.model_validate("llama-tiny"))
    fields = {name: value for name, (value,) in parse_qs(urlsplit(plan_address(study)).query).items()}
    assert plan_request(PlanForm(**fields, prices="h100-sxm5-80gb=2.1")).prices == {"H100": 2.1}
    with pytest.raises(FormErrors):
        plan_request(PlanForm(**fields, prices="h100=2.1, H100-80GB=2.2"))
    with pytest.raises(FormErrors):
        plan_request(PlanForm(**fields, prices="h200=2.1"))

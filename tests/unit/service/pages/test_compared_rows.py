"""The table that compares configurations folds only rows that are equal, or at their default where a backend has them."""

from shardtune.api_schemas.strategies import DdpConfig, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.comparisons import ComparedConfig, Comparison, KnobDifference
from shardtune.service.pages.views.compare import comparison
from shardtune.tuner.search.space.flat import differing_knobs
from tests.support.values.synthetic_studies import study_of


def compared(*configs: TrialConfig) -> Comparison:
    study = study_of()
    sides = tuple(
        ComparedConfig(
            study_id="study-1", trial_number=number, model="llama-tiny", workload=study.spec.workload,
            cluster=study.cluster, config=config, description=config.describe(), gpu_seconds=1, study_gpu_seconds=1,
        )
        for number, config in enumerate(configs)
    )  # fmt: skip
    differing = [KnobDifference(knob=name, values=values) for name, values in differing_knobs(configs).items()]
    return Comparison(configs=sides, differences=tuple(differing), currency="EUR", is_one_subject=True, not_found=())


def names(groups) -> set[str]:
    return {line.name for _, lines in groups for line in lines}


def test_a_setting_that_one_backend_lacks_is_shown_where_the_others_differ() -> None:
    first, second = (TrialConfig(strategy=ZeroConfig(stage=stage)) for stage in (1, 2))
    ddp = TrialConfig(strategy=DdpConfig())
    page = comparison(compared(first, second, ddp))
    assert "ZeRO stage" in names(page.shown) and "ZeRO stage" not in names(page.folded) and page.has_missing


def test_a_setting_that_one_side_lacks_is_never_folded_as_equal() -> None:
    zero, ddp = (
        TrialConfig(strategy=ZeroConfig(stage=2, offload_optimizer=Offload())),
        TrialConfig(strategy=DdpConfig()),
    )
    page = comparison(compared(zero, ddp))
    partial = {name for name, values in differing_knobs((zero, ddp)).items() if None in values}
    assert {"ZeRO stage", "offload optimizer"} <= names(page.shown) and page.has_missing
    assert len(partial) == len({line.name for _, lines in page.shown for line in lines if line.has_missing})
    (folded,) = [lines for title, lines in page.folded if title == "Settings of some backends only, at their default"]
    assert folded and all(line.has_missing and not line.differs for line in folded)

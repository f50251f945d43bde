"""The table that compares configurations folds only rows that are equal wherever a backend has them."""

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.comparisons import ComparedConfig, Comparison, KnobDifference
from shardtune.service.pages.views.compare import comparison
from shardtune.tuner.search.space.flat import flatten
from tests.support.values.synthetic_studies import study_of


def compared(*configs: TrialConfig) -> Comparison:
    study, tables = study_of(), [flatten(config) for config in configs]
    sides = tuple(
        ComparedConfig(
            study_id="study-1", trial_number=number, model="llama-tiny", workload=study.spec.workload,
            cluster=study.cluster, config=config, description=config.describe(), gpu_seconds=1, study_gpu_seconds=1,
        )
        for number, config in enumerate(configs)
    )  # fmt: skip
    values = {name: tuple(table.get(name) for table in tables) for table in tables for name in table}
    differing = [KnobDifference(knob=name, values=each) for name, each in values.items() if len(set(each)) > 1]
    return Comparison(configs=sides, differences=tuple(differing), currency="EUR", is_one_subject=True, not_found=())


def names(groups) -> set[str]:
    return {line.name for _, lines in groups for line in lines}


def test_a_setting_that_one_backend_lacks_is_shown_where_the_others_differ() -> None:
    first, second = (TrialConfig(strategy=ZeroConfig(stage=stage)) for stage in (1, 2))
    ddp = TrialConfig(strategy=DdpConfig())
    page = comparison(compared(first, second, ddp))
    assert "ZeRO stage" in names(page.shown) and "ZeRO stage" not in names(page.folded) and page.has_missing
    equal = comparison(compared(first, first, ddp))
    assert "ZeRO stage" in names(equal.folded) and "ZeRO stage" not in names(equal.shown) and not equal.has_missing

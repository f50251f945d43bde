"""Whether a host or a rank lacks memory is told by what failed, not by comparing two amounts."""

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.trials.trial import Rejection
from shardtune.service.pages.views.study_sections.failures import lacks_host_memory, least_needed_gib
from shardtune.service.python_api.measured_tables import rejected_row

OF_HOST = Rejection(
    config=TrialConfig(strategy=DdpConfig()),
    needed_gib=70,
    available_gib=64,
    memory_of="host",
    reason="offloading needs 70 GiB",
)


def test_a_host_that_has_just_what_a_rank_may_use_is_still_named() -> None:
    """GPUs of 80 GiB with a headroom of 20 % beside a host of 64 GiB: the page said that a rank needs 70 GiB."""
    assert lacks_host_memory([OF_HOST], usable_gib=64)
    assert least_needed_gib([OF_HOST], usable_gib=64) is None


def test_a_rank_that_could_use_less_when_it_was_rejected_is_no_host() -> None:
    of_rank = OF_HOST.model_copy(update={"memory_of": "rank"})
    assert not lacks_host_memory([of_rank], usable_gib=75.2)
    assert least_needed_gib([of_rank], usable_gib=75.2) == 70


def test_what_a_host_would_need_is_not_named_a_ranks_need() -> None:
    assert "rank would need" not in str(rejected_row(OF_HOST).cells)
    assert "one rank would need" in str(rejected_row(OF_HOST.model_copy(update={"memory_of": "rank"})).cells)

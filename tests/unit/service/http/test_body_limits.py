"""Limits on request bodies fit what the addresses' own forms accept."""

from shardtune.service.http.pre_body_auth import DEFAULT_MAX_BYTES, max_body_bytes


def test_the_form_of_a_plan_may_hold_as_much_as_that_of_a_study() -> None:
    assert max_body_bytes("/plans") == max_body_bytes("/new") > DEFAULT_MAX_BYTES
    assert max_body_bytes("/plans/other") == DEFAULT_MAX_BYTES

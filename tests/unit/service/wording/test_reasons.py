"""Reasons of an answer: three on each side at a glance, the gravest first, and none that repeats the answer."""

from shardtune.service.wording.answers.trust_line import Trust
from shardtune.service.wording.reasons import reasons


def test_three_reasons_stand_on_each_side_and_the_others_are_kept() -> None:
    trust = [Trust(tone, f"{tone} {number}") for number in range(4) for tone in ("good", "warn", "quiet")]
    chosen = reasons([*trust, Trust("bad", "bad 0")], "Confirmed.")
    assert chosen.supporting == ("good 0", "good 1", "good 2")
    assert [reason.text for reason in chosen.opposing] == ["bad 0", "warn 0", "warn 1"]
    kept = {reason.text for reason in chosen.others}
    assert kept == {"good 3", "warn 2", "warn 3", "quiet 0", "quiet 1", "quiet 2", "quiet 3"}


def test_a_reason_that_repeats_the_answer_is_left_out() -> None:
    busy = Trust("bad", "the machine was too busy to answer: other programs disturbed 6 of 14 runs in pairs")
    chosen = reasons([busy, Trust("warn", "a short search")], f"T{busy.text[1:]}. Keep the baseline.")
    assert [reason.text for reason in chosen.opposing] == ["a short search"] and not chosen.others

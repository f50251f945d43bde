"""Reasons of an answer: three on each side at a glance, the gravest first, and none that repeats the answer."""

from shardtune.service.wording.answers.trust_line import TOO_BUSY, Trust
from shardtune.service.wording.reasons import reasons


def test_three_reasons_stand_on_each_side_and_the_others_are_kept() -> None:
    trust = [Trust(tone, f"{tone} {number}") for number in range(4) for tone in ("good", "warn", "quiet")]
    chosen = reasons([*trust, Trust("bad", "bad 0")])
    assert chosen.supporting == ("good 0", "good 1", "good 2")
    assert [reason.text for reason in chosen.opposing] == ["bad 0", "warn 0", "warn 1"]
    kept = {reason.text for reason in chosen.others}
    assert kept == {"good 3", "warn 2", "warn 3", "quiet 0", "quiet 1", "quiet 2", "quiet 3"}


def test_a_reason_that_repeats_the_answer_is_left_out() -> None:
    busy = Trust("bad", "the machine was too busy to answer: other programs disturbed 6 of 14 runs", subject=TOO_BUSY)
    chosen = reasons([busy, Trust("warn", "a short search")], (TOO_BUSY,))
    assert [reason.text for reason in chosen.opposing] == ["a short search"] and not chosen.others
    assert [reason.text for reason in reasons([busy]).opposing] == [busy.text]


def test_a_repeated_reason_keeps_its_figures_among_the_folded_ones() -> None:
    busy = Trust("bad", "other programs disturbed 6 of 14 runs", "other programs disturbed runs", TOO_BUSY)
    chosen = reasons([busy], (TOO_BUSY,))
    assert not chosen.opposing and [reason.text for reason in chosen.others] == [busy.text]

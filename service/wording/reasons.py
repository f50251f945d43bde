"""Reasons for and against believing an answer: the most important of each, and how its figures were measured."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shardtune.service.wording.answers.trust_line import Trust

_MOST_SHOWN = 3
"""Maximum number of supporting reasons, and of opposing reasons, that the page shows unfolded."""
_AGAINST = ("bad", "warn")
"""Tones of reasons against an answer; the most serious comes first."""


@dataclass(frozen=True)
class Reasons:
    """Reasons for and against believing a study's answer, in the order in which its page shows them."""

    supporting: tuple[str, ...]
    opposing: tuple[Trust, ...]
    others: tuple[Trust, ...]
    """Reasons that the page shows folded: further reasons, neutral remarks, and the full text of each shown reason
    whose short form leaves its figures out."""


def reasons(trust: Sequence[Trust], stated: Collection[str] = (), speeds: Sequence[Trust] = ()) -> Reasons:
    """Choose the reasons to show beside the sentence of the answer, and leave out reasons that repeat it. `stated`:
    subjects of reasons that the sentence states. `speeds`: lines about the measured speeds, which join the folded
    reasons."""
    new = [reason for reason in trust if reason.brief is not None or reason.subject not in stated]
    listed = [reason for reason in new if reason.shown and reason.subject not in stated]
    supporting = [reason for reason in listed if reason.tone == "good"]
    opposing = [reason for tone in _AGAINST for reason in listed if reason.tone == tone]
    shown = {id(reason) for reason in (*supporting[:_MOST_SHOWN], *opposing[:_MOST_SHOWN])}
    others = [reason for reason in new if reason.brief is not None or id(reason) not in shown]
    return Reasons(
        supporting=tuple(reason.shown for reason in supporting[:_MOST_SHOWN]),
        opposing=tuple(opposing[:_MOST_SHOWN]),
        others=with_speeds(trust, others, speeds),
    )


def with_speeds(trust: Sequence[Trust], others: Sequence[Trust], speeds: Sequence[Trust]) -> tuple[Trust, ...]:
    """Return `others` (the folded reasons) with the lines about speeds inserted after the first reason, which is about
    the pairs of runs."""
    at = 1 if others and others[0] is trust[0] else 0
    return (*others[:at], *speeds, *others[at:])

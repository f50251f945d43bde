"""Reasons for and against believing an answer: the most important of each, and the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.service.wording.trust import Trust

_MOST_SHOWN = 3
"""Maximum number of reasons for an answer, and of reasons against it, that are shown unfolded."""
_AGAINST = ("bad", "warn")
"""Tones of reasons against an answer, the most serious first."""


@dataclass(frozen=True)
class Reasons:
    """Reasons for and against a study's answer, in the order in which its page shows them."""

    supporting: tuple[str, ...]
    opposing: tuple[Trust, ...]
    others: tuple[Trust, ...]
    """Further reasons and neutral remarks, which the page shows folded."""


def reasons(trust: Sequence[Trust], sentence: str) -> Reasons:
    """Choose the reasons to show beside the answer's `sentence`, without reasons that repeat it."""
    # The sentence itself may say why a machine was too busy: a reason that repeats it tells nothing.
    new = [reason for reason in trust if reason.text.lower() not in sentence.lower()]
    supporting = [reason for reason in new if reason.tone == "good"]
    opposing = [reason for tone in _AGAINST for reason in new if reason.tone == tone]
    shown = {id(reason) for reason in (*supporting[:_MOST_SHOWN], *opposing[:_MOST_SHOWN])}
    return Reasons(
        supporting=tuple(reason.text for reason in supporting[:_MOST_SHOWN]),
        opposing=tuple(opposing[:_MOST_SHOWN]),
        others=tuple(reason for reason in new if id(reason) not in shown),
    )

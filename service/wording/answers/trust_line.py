"""One reason for or against believing the result of a study, with and without its counts of runs."""

from dataclasses import dataclass

TOO_BUSY = "too_busy"
"""Subject of the reason that says why a machine was too busy to answer. A page's sentence may state the same."""
INTERVAL = "interval"
"""Subject of the reason that a confirmed gain has a wide interval. A terminal's verdict states the same interval."""


@dataclass(frozen=True)
class Trust:
    """One reason for or against believing the result of a study."""

    tone: str
    text: str
    """Sentence with all its figures. Programs read it, and so does the section that says how the answer was
    measured."""
    brief: str | None = None
    """Sentence without numbers of runs, for short lists of reasons. Empty if another reason of the list already says
    it. None if `text` itself is short."""
    subject: str = ""
    """Subject of the reason, for code that asks for it; otherwise empty."""

    @property
    def shown(self) -> str:
        """Sentence for a short list of reasons; empty if the list leaves this reason out."""
        return self.text if self.brief is None else self.brief


def part_of(number: int, whole: int) -> str:
    """Describe a number as a part of a whole in words: `some of`, `most of` or `all of`."""
    if number >= whole:
        return "all of"
    return "most of" if 2 * number > whole else "some of"

"""Answer of a study together with the rows that it must agree with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.busy.rows import StudyRows, config_key

Match = re.Match[str]


@dataclass(frozen=True)
class Evidence:
    """Answer of a study and the rows that it must agree with."""

    answer: Mapping[str, Any]
    rows: StudyRows

    @property
    def best(self) -> int:
        """Number of the recommended trial."""
        return self._number("best")

    @property
    def paired(self) -> tuple[int, int]:
        """Numbers of the trials that were paired: candidate and baseline."""
        return self._number("candidate" if self.answer.get("candidate") else "best"), self._number("baseline")

    @property
    def pair_ratios(self) -> list[float]:
        """Ratios of candidate to baseline speed in the pairs, by the rows."""
        return self.rows.pair_ratios(*self.paired)

    @property
    def paired_disturbances(self) -> int:
        """Number of disturbed validation runs of the two paired trials."""
        return sum(run.is_disturbed and run.trial in self.paired for run in self.rows.validation)

    def _number(self, contender: str) -> int:
        return self.rows.numbers[config_key(self.answer[contender]["config"])]

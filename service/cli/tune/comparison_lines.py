"""Lines about pairs of runs and about runs that are kept although they were disturbed, which the live table and the plain lines
share."""

from collections.abc import Callable, Sequence

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.wording.progress import kept_runs, pair_lines


class ComparisonLines:
    """Writer of these lines. It writes each of them once."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._pairs: set[tuple[int, int]] = set()
        self._kept: set[str] = set()
        self._is_disturbance_lasting = False
        self._named: set[tuple[int, str]] = set()
        self._has_ended = False

    def skip_earlier(self, study: Study, trials: Sequence[Trial]) -> None:
        """Write nothing about the pairs and runs that have ended already."""
        self._kept = {run.run_id for _, run in kept_runs.ended_runs(trials)}
        if study.result is not None:
            # The comparison of that result has ended: while the study is extended, its newest block is an earlier one, too.
            study = study.model_copy(update={"state": StudyState.COMPLETE})
        self._pairs = {(study.final_comparison, block) for block in pair_lines.pair_lines(study, trials)}

    def write_kept(self, study: Study, trials: Sequence[Trial]) -> None:
        """Write the first of several runs that are kept for the same lasting reason; the others only have a mark."""
        for trial, run in kept_runs.ended_runs(trials):
            if run.run_id in self._kept:
                continue
            self._kept.add(run.run_id)
            kept = kept_runs.kept_run(study, trials, trial, run)
            if kept is None:
                self._is_disturbance_lasting = False
            elif kept.is_lasting and not self._is_disturbance_lasting:
                self._is_disturbance_lasting = True
                self._write(kept.line)

    def write_pairs(self, study: Study, trials: Sequence[Trial]) -> None:
        """Write the pairs that are complete now, and why no further pair follows."""
        new = [
            (block, line)
            for block, line in pair_lines.pair_lines(study, trials).items()
            if (study.final_comparison, block) not in self._pairs
        ]
        if new and (named := (study.final_comparison, pair_lines.paired_trials(study, trials))) not in self._named:
            self._named.add(named)
            self._write(named[1])
        for block, line in new:
            self._pairs.add((study.final_comparison, block))
            self._write(line)
        end = pair_lines.end_of_pairs(study)
        if end is not None and not self._has_ended:
            self._has_ended = True
            self._write(end)

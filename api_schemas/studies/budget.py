"""Schema of a study's budget: the limits of its search and of its final comparison."""

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema

FEWEST_PAIRS, MOST_PAIRS = 7, 100
"""Smallest number of pairs of runs from which a sign test can give a verdict (one configuration must win all of them),
and the largest number of pairs that a study may have. On a quiet machine fewer pairs may be enough
(`tuner.verdict.quiet_test`)."""
SUSTAINED_S, MOST_SUSTAINED_S = 120.0, 3600.0
"""Default seconds of steady training in the sustained run on GPUs, and the longest that a study may ask for."""
DEFAULT_TRIALS, MOST_TRIALS = 40, 10_000
"""Default maximum number of trials in a search (40), and the largest number that a budget may set (10,000)."""


class Budget(Schema):
    """Limits of a study. The search ends at the first limit that it reaches. The final comparison (paired runs that
    decide) keeps the limits of GPU-seconds and time as well, and has a limit on pairs of its own."""

    max_trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Exact number of trials, unless the search space is exhausted first. If None, up to 40 trials run, fewer if
    further gain is unlikely."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Maximum GPU-seconds (seconds × ranks) of the study. The search ends early enough for the final comparison, which
    starts no pair that would exceed the limit. A run that is under way at the limit is not ended, so it may exceed it.
    Recipes in `consider`, rehearsals and runs under the profiler are not limited."""
    max_wall_seconds: float | None = Field(default=None, gt=0)
    """Maximum seconds that the study may take, counted from the moment at which it could first run. It limits the same
    runs as `max_gpu_seconds`."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9, examples=[5000.0])
    """Length in hours × GPUs of the training run that will use the result. If set, the search stops once the next trial
    is expected to cost more GPU-time than it saves, instead of at an expected gain below 1 %. Not allowed together with
    `max_trials`."""
    max_pairs: int = Field(default=24, ge=FEWEST_PAIRS, le=MOST_PAIRS)
    """Maximum number of pairs of runs, each of the challenger (the fastest other configuration) and the baseline. If
    the speeds cannot be told apart after that many, the verdict is `undecided`. More pairs detect smaller gains."""
    repeat_disturbed: float = Field(default=0.5, ge=0, le=3)
    """Limit on repeats of disturbed runs (by other programs or lowered GPU clocks), as a fraction of the study's completed
    runs; four repeats beyond it are always allowed. After four disturbed runs in a row on one machine, only runs
    that ended early are repeated there until a run was undisturbed, or the study was extended. 0 means that no run is
    repeated. Disturbed runs that are not repeated count, and may make the verdict `too_busy`."""
    prune: bool = True
    """Whether to end a search trial during its warm-up once it is certainly more than 10 % slower than the fastest so
    far. Neither of the two runs may have been disturbed. The trial's state is then `pruned`: its
    speed guides the search, but no result uses it. With `repeat_disturbed` 0 no trial is pruned: whether other
    programs disturbed a run shows only at its end, and a run that ended early could not be repeated in full."""
    short_steps: bool = True
    """Whether steps that are predicted to take seconds are timed with fewer micro batches, and the time of the whole
    step is extrapolated from these times. As a check, the two configurations of the final comparison run whole steps
    once after the verdict."""
    resume_check: bool = True
    """Whether the best configuration must pass a resume check before it becomes the result: it trains, saves a
    checkpoint and continues from it in new processes (takes seconds, and 16 bytes of disk per parameter)."""
    sustained_run_s: float | None = Field(default=None, ge=0, le=MOST_SUSTAINED_S, examples=[120.0])
    """Seconds of steady training in one more run of the best configuration after the verdict. The answer then states
    its sustained speed beside that of the comparison, whose runs are short; the verdict stays. If null, 120 on GPUs and
    no such run on CPU ranks. 0 leaves the run out."""
    skip_rehearsal: bool = False
    """Whether to leave out the rehearsals of a study with a `target`. In a rehearsal, after the verdict, a worker
    builds and steps a projected configuration with fake tensors at the target's number of ranks. Up to four of the
    fastest are rehearsed; each takes one to four minutes of a core."""

    profile: bool = False
    """Whether to run the best configuration and the one compared with it once more after the verdict, with some steps
    under torch's profiler. `GET /v1/studies/{id}/trials/{n}/diagnosis` returns where their time went. Each run takes
    about as long as a trial, and the result does not wait for it."""

    @model_validator(mode="after")
    def _one_end(self) -> "Budget":
        if self.planned_gpu_hours is not None and self.max_trials is not None:
            raise ValueError(
                f"planned_gpu_hours ({self.planned_gpu_hours:g}) says when further trials no longer pay, and max_trials "
                f"({self.max_trials}) how many there are: leave one out"
            )
        return self

    def sustained_seconds(self, device: str) -> float:
        """Seconds of steady training in the sustained run on a kind of device (`cuda` or `cpu`); 0 for no such run."""
        if self.sustained_run_s is not None:
            return self.sustained_run_s
        return SUSTAINED_S if device == "cuda" else 0.0

    @property
    def most_trials(self) -> int:
        """Maximum number of trials in the search: the one that the budget states, or the default."""
        return self.max_trials or DEFAULT_TRIALS

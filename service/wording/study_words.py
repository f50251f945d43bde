"""Studies, trials and figures in words, shared by the command line and the pages."""

from collections.abc import Sequence

from shardtune.api_schemas.measurements import Progress
from shardtune.api_schemas.restart import RestartCheck, RestartOutcome
from shardtune.api_schemas.studies import FEWEST_PAIRS, Study, StudyPhase
from shardtune.api_schemas.trials import Rejection, Run, RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.tuner.verdict import promotion

_MOST_REASONS = 5


def is_done(trial: Trial) -> bool:
    """The trial has ended, however."""
    return not trial.state.is_open


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `1 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def rate(value: float | None) -> str:
    """Tokens per second and GPU."""
    return "" if value is None else f"{value:,.0f}"


def gib(value: float | None) -> str:
    """GiB, with as many digits as matter."""
    if value is None:
        return ""
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def peak_memory(trial: Trial) -> float | None:
    """What the limit is about: reserved on a GPU, allocated on CPU ranks, which reserve nothing."""
    return trial.peak_allocated_gib if trial.peak_reserved_gib is None else trial.peak_reserved_gib


def reason(trial: Trial) -> str:
    """Why a trial is not feasible, on one line; empty where it is."""
    if trial.failure is None:
        return ""
    return f"{trial.failure.kind.value}: {' '.join(trial.failure.message.split())}"


def refusal(rejection: Rejection) -> str:
    """Why the memory gate refused a configuration."""
    what, reason = rejection.config.describe(), " ".join(rejection.reason.split())
    return reason if reason.startswith(what) else f"{what}: {reason}"


def closest_refusals(rejections: Sequence[Rejection]) -> list[str]:
    """Of each backend the refused configuration that was nearest to fitting."""
    nearest: dict[str, Rejection] = {}
    for rejection in rejections:
        known = nearest.get(rejection.config.backend)
        if known is None or rejection.needed_gib < known.needed_gib:
            nearest[rejection.config.backend] = rejection
    return [refusal(rejection) for rejection in nearest.values()]


def predicted(trial: Trial) -> str:
    """What was predicted for a trial, in brackets; empty where nothing was."""
    made = trial.prediction
    if made is None:
        return ""
    speed = f"{rate(made.tokens_per_s_per_gpu)} tokens/s/GPU, " if made.tokens_per_s_per_gpu is not None else ""
    return f" (predicted: {speed}{gib(made.memory_gib)} GiB)"


def tested(trial: Trial) -> str:
    """What the sampler tried with it; empty where it was a seed, or the sampler cannot say."""
    why = trial.reason
    return "" if why is None else f" (tried: {why.tests}; expected gain {why.expected_gain:.1%})"


def restarted(check: RestartCheck) -> str:
    """What the check of the winner's own checkpoint came to."""
    if check.outcome != RestartOutcome.PASSED:
        return f"{'not checked' if check.outcome is RestartOutcome.NOT_CHECKED else check.outcome}: {check.reason}"
    assert check.checkpoint_bytes is not None
    off = f"largest difference {check.loss_difference:.1e}" if check.loss_difference else "no difference"
    retries = ", no allocator retries" if check.allocator_retries == 0 else ""
    return (
        f"went on from its own checkpoint in new processes: {check.steps_before} steps, saved {check.checkpoint_bytes / 2**20:,.1f} MiB "
        f"in {check.save_s:.2f} s, loaded in {check.load_s:.2f} s, {check.steps_after} steps with the losses of an uninterrupted "
        f"run ({off}){retries}"
    )


def why_not(trials: Sequence[Trial], rejections: Sequence[Rejection]) -> list[tuple[str, str]]:
    """Infeasible and failed trials, the closest refusal of each backend, and a search that never began, as rows."""
    rows = [
        (trial.state.value, f"{trial.description}: {reason(trial)}") for trial in trials if trial.failure is not None
    ]
    if len(rows) > _MOST_REASONS:
        rows[_MOST_REASONS:] = [
            ("", f"and {len(rows) - _MOST_REASONS} more; `shardtune serve` has them under /v1/studies")
        ]
    rows += [("refused", text) for text in closest_refusals(rejections)]
    if all(trial.origin != TrialOrigin.SAMPLER for trial in trials):
        rows.append(("note", "only the starting configurations ran, nothing was searched; allow 6 trials or more"))
    return rows


def activity(study: Study, trials: Sequence[Trial]) -> str:
    """What the study is doing at this moment."""
    if study.phase is StudyPhase.PROFILE:
        return "counting the model's parameters and FLOPs"
    running = [(trial, run) for trial in trials for run in trial.runs if run.state is TrialState.RUNNING]
    confirming = study.phase is StudyPhase.CONFIRM
    what = confirm_position(study, trials) if confirming else "searching"
    if not running:
        return what + ", choosing the next configuration" if not confirming else what
    trial, run = running[-1]
    if run.purpose == RunPurpose.RESTART:
        return f"trial {trial.number} won, and has to go on from its own checkpoint: {step(run.progress)}"
    return f"{what}, trial {trial.number}: {step(run.progress)}"


def confirm_position(study: Study, trials: Sequence[Trial]) -> str:
    """How far the promotion is."""
    done = len(fresh_runs(study, trials))
    return f"running the fastest and the baseline again, run {done + 1} of at most {most_confirm_runs(study)}"


def most_confirm_runs(study: Study) -> int:
    """Fresh runs a promotion can take; it ends as soon as the pairs are clear."""
    return promotion.most_runs(_most_candidates(study), study.spec.budget.max_pairs)


def _most_candidates(study: Study) -> int:
    return study.spec.budget.most_trials - 1


def fresh_runs(study: Study, trials: Sequence[Trial]) -> list[tuple[Trial, Run]]:
    """Complete runs of the present promotion, with their trials; those of former ones do not count any more."""
    made = runs_of(trials, "confirm", TrialState.COMPLETE)
    return [(trial, run) for trial, run in made if run.promotion in (None, study.promotion)]


def runs_of(trials: Sequence[Trial], purpose: str, state: TrialState) -> list[tuple[Trial, Run]]:
    """Runs of a purpose in a state, with their trials."""
    return [(trial, run) for trial in trials for run in trial.runs if run.purpose == purpose and run.state is state]


def step(progress: Progress | None) -> str:
    """Where a run stands."""
    if progress is None:
        return "starting ranks"
    words = {
        "starting": "starting ranks",
        "building": "building the model",
        "warming_up": "warming up",
        "saving": "saving a checkpoint",
        "loading": "loading a checkpoint",
    }
    phase = words.get(progress.phase, progress.phase)
    return f"{phase}, step {progress.step}" if progress.step else phase


def time_left(study: Study, trials: Sequence[Trial], elapsed_s: float) -> str:
    """An estimate from the mean time of a run so far; empty before there is one."""
    finished = sum(is_done(trial) for trial in trials)
    confirmed = len(fresh_runs(study, trials))
    earlier = len(runs_of(trials, "confirm", TrialState.COMPLETE)) - confirmed
    return remaining(study, finished, confirmed, earlier, elapsed_s)


def remaining(study: Study, finished: int, confirmed: int, earlier: int, elapsed_s: float) -> str:
    """The same from the numbers of finished trials, and of complete fresh runs of this and of former promotions."""
    if not finished or study.phase is StudyPhase.DONE:
        return ""
    # Not from the elapsed time: a resumed study has not spent all of it.
    per_run = study.gpu_seconds / study.cluster.world_size / (finished + confirmed + earlier)
    budget = study.spec.budget
    search_s = 0.0
    if study.phase is StudyPhase.SEARCH:
        search_s = max(0, budget.most_trials - finished) * per_run
        if budget.max_wall_seconds is not None:
            search_s = min(search_s, max(0.0, budget.max_wall_seconds - elapsed_s))
    # Clear winners take the fewest pairs there can be, and most that are none are seen to be none by then.
    usual = promotion.most_runs(_most_candidates(study), FEWEST_PAIRS)
    left = usual if confirmed < usual else most_confirm_runs(study)
    total = duration(search_s + (left - confirmed) * per_run)
    return f"at most {total}" if budget.max_trials is None or left > usual else f"about {total}"

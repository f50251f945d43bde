"""Studies as the commands print them."""

from shardtune.api_schemas.studies import Study, StudyState
from shardtune.api_schemas.trials import TrialState
from shardtune.service.cli import summary
from shardtune.service.wording import study_words


def line(study: Study) -> str:
    """For a list."""
    done = sum(count for state, count in study.trials.items() if not TrialState(state).is_open)
    state = f"{study.state.value} ({study.phase.value})" if study.state is StudyState.RUNNING else study.state.value
    state += ", deleted" if study.deleted_at is not None else ""
    return f"{study.study_id}  {state:<17}  {study.spec.model.name}  {done} trials  {study.created_at:%Y-%m-%d %H:%M}"


def text(study: Study) -> str:
    """One study as it stands."""
    lines = [line(study)]
    best = study.best_so_far
    if study.result is not None:
        lines.append(summary.as_text(study, study.result))
    elif best is not None:
        lines.append(f"best so far: {best.description}: {study_words.rate(best.tokens_per_s_per_gpu)} tokens/s/GPU")
    if study.result is None and study.reason is not None:
        lines.append(study.reason)
    return "\n".join(lines)

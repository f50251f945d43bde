"""One-page answer of a study to share, as Markdown: verdict, both configurations, what changes, and the reasons."""

from collections.abc import Sequence

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli import summary
from shardtune.service.wording import cluster_words, study_words
from shardtune.service.wording.answers.how_measured import speed_reasons
from shardtune.service.wording.answers.verdict_line import best_name, verdict_text
from shardtune.service.wording.result_runs import result_runs
from shardtune.tuner.export.quoting import remark

_SIGNS = {"good": "for", "warn": "against", "bad": "against", "quiet": "also"}
"""Word that stands before each reason for or against the answer, by the reason's tone (`good`, `warn`, `bad`,
`quiet`)."""


def as_markdown(study: Study, result: StudyResult, trials: Sequence[Trial], changes: str | None) -> str:
    """Return a study's answer as a Markdown page. `changes`: text of the study's `changes.md`; None if there is no
    such text."""
    spec = study.spec
    trained = ", ".join((spec.workload.precision.name, *study_words.trained_parts(spec.workload)))
    lines = [
        f"# {remark(spec.model.name)}: {remark(result.best.description)}",
        "",
        f"**{verdict_text(result)}**",
        "",
        f"{remark(spec.model.name)} at sequence length {spec.workload.sequence_length:,}, global batch "
        f"{spec.workload.global_batch:,}, {remark(trained)}, on "
        f"{remark(cluster_words.cluster_with_memory(study.cluster))}. Study {study.study_id}"
        + (f", {study.finished_at:%Y-%m-%d}" if study.finished_at else "")
        + f", {study_words.duration(study.gpu_seconds)} of GPU time.",
        "",
        *_contenders(result),
        "",
    ]
    if changes is not None:
        # One level below this page's own title.
        lines += [f"#{line}" if line.startswith("#") else line for line in changes.splitlines()] + [""]
    lines += ["## Reasons", ""]
    believed = (*summary.reasons(study, result, trials), *speed_reasons(result, result_runs(study, result, trials)))
    lines += [f"- {_SIGNS[reason.tone]}: {remark(reason.text)}" for reason in believed]
    lines += ["", f"Its files: `shardtune export {study.study_id}`; all runs: `shardtune serve`."]
    return "\n".join(lines)


def _contenders(result: StudyResult) -> list[str]:
    rows = [(best_name(result), result.best), ("baseline", result.baseline)]
    if result.candidate is not None:
        rows.append(("fastest candidate", result.candidate))
    # With short steps it is the speed of one run with whole steps, as a reason below says.
    how = "" if result.whole_steps else ", median of all runs"
    table = [f"| | configuration | tokens/s/GPU{how} | peak memory |", "|---|---|---|---|"]
    return table + [_row(name, contender) for name, contender in rows]


def _row(name: str, contender: Contender) -> str:
    peak = contender.peak_allocated_gib if contender.peak_reserved_gib is None else contender.peak_reserved_gib
    description = remark(contender.description).replace("|", "\\|")
    speed = study_words.rate(contender.tokens_per_s_per_gpu)
    return f"| {name} | {description} | {speed} | {study_words.memory(peak)} |"

"""Answer of a study as an SVG picture to share: verdict, both configurations, and the reasons for and against it."""

import io
import re
from collections.abc import Sequence
from html import escape

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli import summary
from shardtune.service.wording import cluster_words, study_words
from shardtune.service.wording.answers.how_measured import speed_reasons
from shardtune.service.wording.answers.verdict_line import best_name, verdict_text
from shardtune.service.wording.reasons import reasons
from shardtune.service.wording.result_runs import result_runs

_COLUMNS = 104
TERMINAL_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""SVG template of Rich without its web font, which a viewer would fetch from another host."""
_SIGNS = {"bad": "✗", "warn": "!"}
# XML 1.0 has no place for control characters, which a model's name may hold.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def as_svg(study: Study, result: StudyResult, trials: Sequence[Trial]) -> str:
    """Return the picture."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(_content(study, result, trials))
    # Rich writes the title as it is: it must be escaped here.
    title = escape(_printable(f"Shardtune: {study.spec.model.name}"))
    return console.export_svg(title=title, theme=DEFAULT_TERMINAL_THEME, code_format=TERMINAL_SVG, unique_id="answer")


def _content(study: Study, result: StudyResult, trials: Sequence[Trial]) -> RenderableType:
    verdict = verdict_text(result)
    speeds = speed_reasons(result, result_runs(study, result, trials))
    chosen = reasons(summary.reasons(study, result, trials))
    lines: list[RenderableType] = [
        Text(_printable(f"{study.spec.model.name}: {result.best.description}"), "bold"),
        Text(_printable(verdict[:1].upper() + verdict[1:]), "bold blue"),
        Text(_printable(_subject(study)), "dim"),
        Text(""),
        _contenders(result),
        Text(""),
        *(Text(_printable(reason.text), "dim") for reason in speeds),
        Text(""),
        *(Text(_printable(f"✓ {text}"), "green") for text in chosen.supporting),
        *(Text(_printable(f"{_SIGNS[reason.tone]} {reason.shown}"), "dark_orange3") for reason in chosen.opposing),
    ]
    return Group(*lines)


def _subject(study: Study) -> str:
    workload = study.spec.workload
    day = f", {study.finished_at:%Y-%m-%d}" if study.finished_at else ""
    trained = ", ".join((workload.precision.name, *study_words.trained_parts(workload)))
    return (
        f"sequence {workload.sequence_length:,}, global batch {workload.global_batch:,}, {trained}, on "
        f"{cluster_words.cluster_with_memory(study.cluster)}; study {study.study_id}{day}"
    )


def _contenders(result: StudyResult) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "configuration", "tokens/s/GPU", "peak memory"):
        table.add_column(heading, justify="left" if heading in ("", "configuration") else "right")
    rows = [(best_name(result), result.best), ("baseline", result.baseline)]
    if result.candidate is not None:
        rows.append(("fastest candidate", result.candidate))
    for name, contender in rows:
        table.add_row(*(Text(_printable(cell)) for cell in _cells(name, contender)))
    return table


def _cells(name: str, contender: Contender) -> tuple[str, ...]:
    peak = contender.peak_allocated_gib if contender.peak_reserved_gib is None else contender.peak_reserved_gib
    speed, memory = study_words.rate(contender.tokens_per_s_per_gpu), study_words.memory(peak)
    return name, contender.description, speed, memory


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)

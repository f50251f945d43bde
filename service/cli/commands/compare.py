"""`shardtune compare`: compare configurations of one or several studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.api_schemas.studies.comparisons import MOST_COMPARED, Comparison
from shardtune.service.cli.connection import connect_or_start, find_study
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, KeyFile, Service, StateDir

if TYPE_CHECKING:
    from shardtune.service import client as api
    from shardtune.service.wording import comparison_words
else:
    comparison_words = LazyModule("shardtune.service.wording.comparison_words")

app = typer.Typer()


@app.command()
def compare(
    picks: Annotated[
        list[str],
        typer.Argument(
            metavar="STUDY…",
            help="Two to four of: study id or `last` (its recommendation), STUDY:NUMBER (a trial), retune id, target key "
            "(the current recommendation).",
        ),
    ],
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Compare configurations side by side: differing knobs, measured speed, memory and cost."""
    # A set: the same configuration twice leaves nothing to compare.
    if not 2 <= len(set(picks)) <= MOST_COMPARED:
        raise InputError(
            f"STUDY ({', '.join(picks)}): give two to {MOST_COMPARED} different configurations, such as A B or A:0 A:3"
        )
    with connect_or_start(service, state_dir, key_file) as client:
        comparison = client.compare([_resolve_last(client, pick) for pick in picks])
    if comparison.not_found:
        raise InputError(
            f"STUDY ({', '.join(comparison.not_found)}) is unknown here, or has no measurement yet; name a study by its "
            "id or `last`, and a trial by its number after the study (last:3)"
        )
    print(comparison.model_dump_json() if as_json else "\n".join(_table_lines(comparison)))


def _resolve_last(client: api.ServiceClient, pick: str) -> str:
    """Replace the word `last` by the id of the newest study."""
    name, colon, number = pick.partition(":")
    return f"{find_study(client, name).study_id}{colon}{number}" if name == "last" else pick


def _table_lines(comparison: Comparison) -> list[str]:
    rows = [("", tuple(f"{side.study_id}:{side.trial_number}" for side in comparison.configs))]
    rows += [("configuration", tuple(side.description for side in comparison.configs))]
    shown = (
        *comparison_words.figure_rows(comparison),
        *(line for line in comparison_words.knob_rows(comparison) if line.differs),
        *(line for line in comparison_words.training_rows(comparison.configs) if line.differs),
    )
    rows += [(line.name, line.values) for line in shown]
    # Plain columns, not a Rich table: four configurations are wider than 80 columns, which Rich would fold.
    names = max(len(name) for name, _ in rows)
    widths = [max(len(values[at]) for _, values in rows) for at in range(len(comparison.configs))]
    lines = [
        name.ljust(names + 2) + "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True))
        for name, values in rows
    ]
    return [line.rstrip() for line in lines]

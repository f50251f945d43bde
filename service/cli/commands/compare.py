"""`shardtune compare`: configurations of one study or of several, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.api_schemas.studies.comparisons import MOST_COMPARED, Comparison
from shardtune.service.cli.connection import connected, study_named
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
            help="Two to four: a study or `last` (its answer), STUDY:NUMBER (a trial), a retune, or a target key (what is "
            "served).",
        ),
    ],
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Print configurations side by side: what differs, and the speed, memory and cost that were measured."""
    if not 2 <= len(set(picks)) <= MOST_COMPARED:
        raise InputError(
            f"STUDY ({', '.join(picks)}): give two to {MOST_COMPARED} different ones, such as A B or A:0 A:3"
        )
    with connected(service, state_dir, key_file) as client:
        found = client.compare([_pick(client, pick) for pick in picks])
    if found.not_found:
        raise InputError(
            f"STUDY ({', '.join(found.not_found)}) is unknown here, or nothing was measured of it yet; name a study by its "
            "id or `last`, a trial by a number behind it (last:3)"
        )
    print(found.model_dump_json() if as_json else "\n".join(_lines(found)))


def _pick(client: api.ServiceClient, pick: str) -> str:
    """With the newest study's id for `last`."""
    name, colon, number = pick.partition(":")
    return f"{study_named(client, name).study_id}{colon}{number}" if name == "last" else pick


def _lines(found: Comparison) -> list[str]:
    rows = [("", tuple(f"{side.study_id}:{side.trial_number}" for side in found.configs))]
    rows += [("configuration", tuple(side.description for side in found.configs))]
    told = (
        *comparison_words.figures(found),
        *(line for line in comparison_words.knobs(found) if line.differs),
        *(line for line in comparison_words.subjects(found.configs) if line.differs),
    )
    rows += [(line.name, line.values) for line in told]
    names = max(len(name) for name, _ in rows)
    widths = [max(len(values[at]) for _, values in rows) for at in range(len(found.configs))]
    lines = [
        name.ljust(names + 2) + "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True))
        for name, values in rows
    ]
    return [line.rstrip() for line in lines]

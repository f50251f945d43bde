from pathlib import Path

from docs.generate import markers
from docs.generate.context import PageContext
from shardtune.tuner.search.space.backends.registry import KNOBS

PAGE = "docs/reference/search-space.md"


def test_the_page_has_a_row_for_every_knob_and_no_other():
    committed = (Path(__file__).parents[4] / PAGE).read_text().partition("## Knobs in exported files")[0]
    lines = (text for _, text in markers.expand(PageContext(PAGE, {}), committed.splitlines()))
    rows = [line for line in lines if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == set(KNOBS)

from pathlib import Path

from shardtune.tuner.search.space.backends.registry import KNOBS

PAGE = Path(__file__).parents[4] / "docs/reference/search-space.md"


def test_the_page_has_a_row_for_every_knob_and_no_other():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == set(KNOBS)

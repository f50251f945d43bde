"""`make check-docs` names file, line and remedy of what a page gets wrong."""

import pytest

from docs.generate import pages
from docs.generate.checks import links, names, navigation, pictures

PAGE = "docs/how-to/made-up.md"


def problems(*lines: str) -> list[str]:
    expanded = {
        PAGE: pages.numbered("\n".join(lines)),
        "docs/reference/cli.md": pages.numbered("# The command line\n## Exit codes"),
    }
    return [*links.problems(expanded), *names.problems(expanded)]


WRONG = {
    "[cli](../reference/cly.md)": "link (../reference/cly.md) leads to docs/reference/cly.md, which is not there",
    "[codes](../reference/cli.md#codes)": "link (../reference/cli.md#codes) leads to no heading of docs/reference/cli.md",
    "[below](#nothing)": "link (#nothing) leads to no heading of docs/how-to/made-up.md",
    "![study](../pictures/nothing.webp#only-light)": "which is not there",
    "[root](/reference/cli.md)": "link (/reference/cli.md) must be relative",
    "see `service/no_such_file.py`": "file (service/no_such_file.py) is not there",
    "run `make no-such-target`": "make target (no-such-target) is not in the Makefile",
    "proved by `test_that_nobody_wrote`": "test (test_that_nobody_wrote) is not there",
    "run `python -m benchmarks.nothing`": "module (benchmarks.nothing) is not there",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_mistake_is_reported_with_file_and_line(line):
    (problem,) = problems("# Page", "", line)
    assert problem.startswith(f"{PAGE}:3: ") and WRONG[line] in problem


@pytest.mark.parametrize(
    "line",
    [
        "[codes](../reference/cli.md#exit-codes) and [here](#page)",
        "`service/settings.py`, `tuner/search/space/backends/KIND.py`, `tests/docs/`, `make docs`",
        "`test_a_mistake_is_reported_with_file_and_line` and `docs/test_check.py`",
        "[elsewhere](https://example.com/nothing.md#x) and `[code](nothing.md)`",
    ],
)
def test_what_is_there_is_not_reported(line):
    assert problems("# Page", "", line) == []


def test_links_in_code_blocks_are_not_followed():
    assert problems("# Page", "```text", "[x](nothing.md)", "```") == []


def test_the_same_heading_twice_has_two_anchors():
    assert pages.anchors(pages.numbered("# A\n## B c\n## B c\n### `x-y`: z { #own }")) == {"a", "b-c", "b-c_1", "own"}


def test_every_page_stands_in_the_navigation():
    assert list(navigation.problems()) == []


def test_a_picture_that_no_page_shows_is_reported():
    expanded = {PAGE: pages.numbered("![workers](../pictures/workers-light.webp#only-light)")}
    reported = "\n".join(pictures.problems(expanded))
    assert "docs/pictures/workers-dark.webp:1: no page shows the picture" in reported
    assert "workers-light" not in reported and "icon.svg" not in reported

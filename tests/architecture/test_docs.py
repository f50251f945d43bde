"""The documentation lists every event, pause and test, and lists none that does not exist."""

import re
from pathlib import Path

import pytest

from shardtune.service.webhooks.deliveries import RETRY_S

DOCS = Path(__file__).parents[2] / "docs"
TESTS = Path(__file__).parents[1]


def test_the_pauses_between_tries_are_those_documented():
    hours = [str(seconds // 3600) for seconds in RETRY_S if seconds >= 3600]
    assert (RETRY_S[0], RETRY_S[1] // 60, RETRY_S[2] // 60) == (5, 5, 30)
    assert (
        f"5 s, 5 min, 30 min, {', '.join(hours[:-1])} and {hours[-1]} hours"
        in (DOCS / "how-to/webhooks.md").read_text()
    )


LONG = re.compile(r"SHARDTUNE_TEST_LONG|support\.long_run|wide_on_postgres")
"""Signs of a module of which the daily run leaves out a part."""


def test_whatever_is_left_out_of_the_daily_run_is_in_the_long_one():
    """`make test-long` names the modules in which SHARDTUNE_TEST_LONG changes something, or their folders, and no others."""
    long_run = (TESTS.parent / "Makefile").read_text().partition("test-long: soak")[2].partition("\n\n")[0]
    paths = re.findall(r"tests/[\w/]+(?:\.py)?", long_run)
    shortened = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__) and LONG.search(path.read_text())]
    modules = {str(path.relative_to(TESTS.parent)) for path in shortened}
    named = {path: {module for module in modules if module == path or module.startswith(f"{path}/")} for path in paths}
    assert modules == set().union(*named.values())
    assert [path for path, covered in named.items() if not covered] == []


TASKS = {
    title: body
    for title, _, body in (
        part.partition("\n")
        for part in re.split(r"^### ", (DOCS.parent / "CONTRIBUTING.md").read_text(), flags=re.M)[1:]
    )
}
FILE = re.compile(r"`((?:api_schemas|benchmarks|db|docs|service|tests|traces|tuner|workers)/[\w./*-]+)`")


@pytest.mark.parametrize("title", TASKS)
def test_each_task_of_contributing_names_files_that_exist_and_a_test(title):
    body = TASKS[title]
    # A backend's own module does not exist yet: KIND stands for any backend.
    files = {name.replace("KIND", "fsdp2") for name in FILE.findall(body)}
    assert len(files) > 3
    assert [name for name in sorted(files) if not (DOCS.parent / name).exists()] == []
    assert title == "Smaller additions" or re.search(r"^\*\*Test:\*\* .*`(tests/|test_)", body, flags=re.M)


def test_the_table_of_contents_leads_to_every_task():
    contents = (DOCS.parent / "CONTRIBUTING.md").read_text().partition("\n## ")[0]
    assert set(re.findall(r"\[([^\]]+)\]\(#", contents)) == TASKS.keys()


@pytest.mark.parametrize(("page", "least"), [("contributing/guarantees.md", 40), ("contributing/gpu-status.md", 10)])
def test_every_test_that_proves_something_is_there(page, least):
    named = set(re.findall(r"`((?:[a-z_]+/)*test_[a-z0-9_]+(?:\.py)?)`", (DOCS / page).read_text()))
    modules = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("test_*.py")}
    functions = {name for text in modules.values() for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > least
    assert named - modules.keys() - functions == set()

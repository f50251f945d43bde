"""Code blocks of README.md and docs/: Python runs, study files are valid, and commands and routes exist."""

import pytest

from docs.generate.snippets.check import problem
from docs.generate.snippets.collect import Snippet, snippets

SNIPPETS = list(snippets())


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.place for snippet in SNIPPETS])
def test_snippet_of_a_page(snippet, tmp_path):
    assert problem(snippet, tmp_path) == ""


def snippet_of(language, text, marker=""):
    return Snippet("page.md", 7, language, text, marker)


BROKEN = {
    "no option of that name": ("sh", "shardtune tune study.json --trials 8\n"),
    "no such command": ("console", "$ shardtune tine\n"),
    "no subcommand of that name": ("sh", "shardtune studies ls"),
    "an unknown option of the worker": ("sh", "shardtune worker --gpus 8"),
    "a value of another type": ("sh", "SHARDTUNE_API_KEY=x shardtune tune --ranks many | tee log"),
    "a route that is gone": ("sh", 'curl -X POST "$SHARDTUNE_SERVICE_URL/v1/jobs" -d "{}"'),
    "a field that no study has": ("json", '{"model": "llama-tiny", "budget": {"trials": 8}}'),
    "half an object": ("json", '{"model": '),
    "an import that fails": ("python", "import shardtune.nothing"),
    "a name that is gone, in a block that does not run": (
        "python",
        "import torch_of_a_reader\nfrom shardtune.api_schemas.studies.study import StudyRequest\n",
        "compile",
    ),
    "a syntax error": ("python", "def"),
    "no language": ("", "text"),
    "broken TOML": ("toml", "a = "),
    "broken YAML": ("yaml", "a: [1"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_snippet_is_reported_with_its_place(reason, tmp_path):
    assert problem(snippet_of(*BROKEN[reason]), tmp_path).startswith("page.md:7: ")


SOUND = {
    "Python that does not run, beside packages of the reader": (
        "python",
        "import torch_of_a_reader\nfrom shardtune.client import ServiceClient\nServiceClient(address)\n",
        "compile",
    ),
    "every line of a shell block": (
        "sh",
        "# comment\nshardtune serve &\nshardtune tune study.json \\\n  --max-trials 8\n",
    ),
    "only prompts of a console": ("console", "$ shardtune best last --json\nshardtune tine is output\n"),
    "a route with a variable": ("sh", 'curl "$SHARDTUNE_SERVICE_URL/v1/studies/$STUDY/events?after=0"'),
    "data that is a query": ("sh", "curl -sG http://127.0.0.1:8470/v1/best --data-urlencode 'model=llama-tiny'"),
    "a fragment of a study file": ("json", '{"space": {"knobs": {"micro_batch": [1, 2]}}}'),
    "an object that is no study": ("json", '{"type": "study.complete"}'),
}


@pytest.mark.parametrize("reason", SOUND)
def test_a_sound_snippet_passes(reason, tmp_path):
    assert problem(snippet_of(*SOUND[reason]), tmp_path) == ""


def test_a_skipped_snippet_is_not_checked(tmp_path):
    assert problem(snippet_of("python", "import nothing", "skip"), tmp_path) == ""

"""Output blocks of pages: `predict` and `plan` print these lines today."""

import shlex

import pytest

from docs.generate.snippets.collect import Snippet, snippets
from shardtune.service.cli import main

SNIPPETS = list(snippets())
COMMANDS = {
    "predict my-study.json --cluster 8xh100 --top 3": "docs/tutorials/first-study.md",
    "predict llama-3.1-8b --cluster 8xh100 --seq-len 4096 --global-batch 64 --top 3": "docs/how-to/predict-before-you-run.md",
    "predict llama-3.1-405b --cluster 8xh100 --global-batch 8": "docs/how-to/predict-before-you-run.md",
    "plan llama-2-70b --tokens 300e9 --gpus h100,h200,mi300x --counts 8..1024 --price h100=2.10,h200=2.60 --start 2030-12-01 "
    "--deadline 2031-03-01": "docs/how-to/plan-a-run.md",
}
"""Commands without options of the machine, so that their output is the same everywhere, and their pages."""


def blocks_after(page: str, command: str) -> list[Snippet]:
    """The output blocks of a page between a command and the next code block that is no output."""
    own = [snippet for snippet in SNIPPETS if snippet.path == page]
    at = next(number for number, snippet in enumerate(own) if f"$ shardtune {command}\n" in snippet.text + "\n")
    outputs = []
    for snippet in own[at + 1 :]:
        if snippet.language != "text":
            break
        outputs.append(snippet)
    return outputs


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_shows_what_the_command_prints(command, tmp_path, monkeypatch, capsys):
    outputs = blocks_after(COMMANDS[command], command)
    study = next(
        snippet
        for snippet in SNIPPETS
        if snippet.path == "docs/tutorials/first-study.md" and snippet.language == "json"
    )
    (tmp_path / "my-study.json").write_text(study.text)
    monkeypatch.chdir(tmp_path)
    # With these a pipe counts as a terminal, whose width breaks the tables' lines; some CI services set them.
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    assert not ended.value.code
    assert outputs
    assert [
        f"{block.place}: {line}"
        for block in outputs
        for line in block.text.splitlines()
        if line.rstrip() not in printed
    ] == []

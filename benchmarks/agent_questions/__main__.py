"""Answer 40 questions by calls of tools alone, and score the replies: `python -m benchmarks.agent_questions --json`.

The client of the official SDK calls the server of `shardtune mcp` in this process. A question is right if the reply, read
from the structured answers, agrees with its key. Keys are published measurements, sizes, arithmetic and planted causes;
none is an earlier answer of the tools.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.server.lowlevel import Server

from benchmarks.agent_questions import configurations, plans, traces
from benchmarks.agent_questions.question import Question
from shardtune.service.cli.mcp.local_product import local_product
from shardtune.service.cli.mcp.stdio import StdioHost
from shardtune.service.mcp.server import create_server

LEAST_SHARE = 0.95
"""Share of right answers below which the program ends with 1."""


def all_questions(folder: Path) -> list[Question]:
    """Return all questions; the traces are written below a folder."""
    return [*configurations.questions(), *traces.questions(folder), *plans.questions()]


async def _answered(server: Server[Any], questions: Sequence[Question]) -> list[dict[str, Any]]:
    async with Client(server) as client:
        return [await _scored(client, question) for question in questions]


async def _scored(client: Client, question: Question) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": question.kind, "question": question.text, "key": question.key, "right": False}
    answers, length = [], 0
    for name, arguments in question.calls:
        result = await client.call_tool(name, arguments)
        length += sum(len(getattr(block, "text", "")) for block in result.content)
        if result.is_error:
            return row | {"reply": f"rejected: {getattr(result.content[0], 'text', '')}"}
        answers.append(result.structured_content)
    try:
        reply = question.read(answers)
        return row | {"reply": reply, "right": question.is_right(reply), "characters": length}
    except (KeyError, IndexError, TypeError, StopIteration) as error:
        # The answer lacks what the question needs: that is a wrong answer.
        return row | {"reply": f"not in the answer: {error!r}"}


def score(folder: Path) -> dict[str, Any]:
    """Return the share of right answers, by kind, and each question with its reply."""
    server = create_server(StdioHost(local_product(folder, None)))
    rows = anyio.run(_answered, server, all_questions(folder))
    asked, right = Counter(row["kind"] for row in rows), Counter(row["kind"] for row in rows if row["right"])
    return {
        "questions": len(rows),
        "right": sum(right.values()),
        "share": round(sum(right.values()) / len(rows), 3),
        "by_kind": {kind: f"{right[kind]} of {count}" for kind, count in asked.items()},
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_questions", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        scored = score(Path(folder))
    if options.json:
        print(json.dumps(scored))
    else:
        for row in scored["rows"]:
            print(
                f"{'right' if row['right'] else 'WRONG'}  {row['kind']}: {row['question']}\n       {row['reply']}; key: {row['key']}"
            )
        print(f"{scored['right']} of {scored['questions']} right ({scored['share']:.1%}): {scored['by_kind']}")
    return 0 if scored["share"] >= LEAST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())

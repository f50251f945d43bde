"""The evaluation of the tools for agents: its questions, its scoring, and the skill that it stands for."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import anyio
import yaml

from benchmarks.agent_questions import __main__ as evaluation
from benchmarks.agent_questions import traces
from shardtune.service.cli.mcp.local_product import local_product
from shardtune.service.cli.mcp.stdio import StdioHost
from shardtune.service.mcp.server import create_server
from shardtune.service.mcp.tool_table import TOOLS

SKILL = Path(__file__).parents[2] / "skills/shardtune/SKILL.md"


def test_forty_questions_of_every_kind_have_keys(tmp_path):
    questions = evaluation.all_questions(tmp_path)
    assert len(questions) == len({question.text for question in questions}) == 40
    assert set(Counter(question.kind for question in questions)) == {"memory", "speed", "choice", "diagnosis", "plan"}
    assert all(question.key and {name for name, _ in question.calls} <= set(TOOLS) for question in questions)


def test_planted_causes_are_found_and_wrong_keys_are_not(tmp_path):
    server = create_server(StdioHost(local_product(tmp_path, None)))
    planted = traces.questions(tmp_path)
    broken = replace(planted[0], is_right=lambda reply: reply == "no finding")
    unread = replace(planted[0], read=lambda answers: answers[0]["nothing"])
    rejected = replace(planted[0], calls=(("diagnose", {"trace_folder": "/nowhere"}),))
    rows = anyio.run(evaluation._answered, server, [*planted, broken, unread, rejected])
    assert [row["right"] for row in rows] == [True] * len(planted) + [False] * 3
    assert rows[-1]["reply"].startswith("rejected: trace_folder (/nowhere)")


def test_the_skill_names_tools_and_fields_that_exist():
    _, head, text = SKILL.read_text().split("---", 2)
    assert yaml.safe_load(head)["name"] == "shardtune" and len(yaml.safe_load(head)["description"]) <= 1024
    words = set(re.findall(r"`([a-z_]+)`", text))
    fields = {
        name
        for entry in TOOLS.values()
        for name in re.findall(r'"([a-z_]+)"', str(entry.output_schema).replace("'", '"'))
    }
    inputs = {name for entry in TOOLS.values() for name in entry.arguments.model_fields}
    values = {"confirmed", "undecided", "too_busy", "complete", "data", "host", "plan"}
    assert words - fields - inputs - values - set(TOOLS) == set()

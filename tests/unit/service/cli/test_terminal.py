"""Foreign text on a terminal: it is shown, and commands nothing."""

import io
import json
import sys

import pytest
from rich.live import Live
from rich.table import Table

from shardtune.service.cli import main
from shardtune.service.cli.commands.explain import show
from shardtune.service.cli.terminal import PrintableConsole, PrintableStream, printable_output
from tests.support.service.simulated_worker import diagnosis
from tests.support.values import synthetic_traces

COMMANDS = [
    "\x1b]52;c;b3duZWQ=\x07",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J",
    "\x1b[1A",
    "\x1b[8m",
    "\x9b2J",
    "\x1bc",
    "a\rb",
    "a\bb",
    "\u202eabc",
]


@pytest.mark.parametrize("command", COMMANDS, ids=ascii)
def test_a_terminals_commands_are_shown_as_text(command, capsys):
    with printable_output():
        print(f"study {command} of somebody")
        sys.stderr.write(f"error: {command}\n")
    console = PrintableConsole()
    console.print(f"note: {command}")
    table = Table(command)
    table.add_row(command)
    console.print(table)
    show(diagnosis(notes=(command,)))
    out, err = capsys.readouterr()
    shown = (out + err).replace("\n", "")
    assert shown.isprintable(), ascii(shown)
    assert "study " in shown and "error: " in shown


def test_a_foreign_name_in_colons_is_no_emoji(capsys):
    console = PrintableConsole()
    table = Table("study")
    table.add_row("run:bug:7")
    console.print(table)
    console.print("run:bug:7")
    assert capsys.readouterr().out.count("run:bug:7") == 2


def test_text_lines_and_colours_pass():
    below = io.StringIO()
    stream = PrintableStream(below)
    stream.write("größer\t1\nnext \x1b[1;31mred\x1b[0m\r\n")
    assert below.getvalue() == "größer\t1\nnext \x1b[1;31mred\x1b[0m\n"


def test_a_live_table_may_move_the_cursor_and_its_cells_may_not():
    below = io.StringIO()
    console = PrintableConsole(force_terminal=True)
    console.file = below
    with Live(console=console, auto_refresh=False) as live:
        live.update("cell \x1b[2J")
        live.refresh()
        live.update("cell \x1b[2J")
        live.refresh()
    assert "\x1b[2K" in below.getvalue() and "\x1b[2J" not in below.getvalue()


def test_words_in_brackets_are_no_markup(capsys):
    show(diagnosis(notes=("[/nothing] [red]x[/red]",)))
    assert "[/nothing] [red]x[/red]" in capsys.readouterr().out


def test_explain_shows_no_escape_of_a_trace_or_of_its_name(tmp_path, capsys):
    trace = synthetic_traces.trace(0, 2, [synthetic_traces.event("cpu_op", "aten::mm", 0, 60)])
    trace["traceEvents"][0]["ts"] = "\x1b]0;owned\x07"
    (tmp_path / "\x1b[2Jrank_0.json").write_text(json.dumps(trace))
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--trace", str(tmp_path)])
    _, err = capsys.readouterr()
    assert ended.value.code == 2 and "\\x1b[2Jrank_0.json" in err
    assert err.replace("\n", "").isprintable()

"""Commands of `shardtune` with their arguments and options, from typer and, for the worker, from argparse."""

import argparse
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from docs.generate import sources
from docs.generate.context import PageContext
from docs.generate.markdown import anchored_code, described, heading, paragraphs, sentence, slug, table

PROGRAM = "shardtune"
WORKER = "worker"
"""The command whose options are those of `python -m shardtune.workers`."""
_COMPLETION = {"install_completion", "show_completion"}
"""Options that typer adds to a command by itself when it is taken out of its application."""


def commands(context: PageContext, *names: str) -> str:
    """Sections for all commands; with `names` for these only.

    Raises:
        ValueError: names a command that there is not.
    """
    known = sources.command_line()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"command ({', '.join(unknown)}) must be one of {', '.join(known)}")
    parts = [] if names else [_overview()]
    return paragraphs(*parts, *(_sections(name, known[name]) for name in names or known))


def anchor(*words: str) -> str:
    """Anchor of a command's section."""
    return slug(" ".join((PROGRAM, *words)))


def parameters(command: TyperCommand) -> list[Any]:
    """Arguments and options of a command that its help shows."""
    return [entry for entry in command.params if entry.name not in _COMPLETION and not getattr(entry, "hidden", False)]


def _overview() -> str:
    rows = [
        (f"[`{PROGRAM} {name}`](#{anchor(name)})", command.help or "")
        for name, command in sources.command_line().items()
    ]
    return table(("command", "purpose"), rows)


def _sections(name: str, command: TyperCommand | TyperGroup) -> str:
    title = heading(2, f"`{PROGRAM} {name}`", anchor(name))
    if isinstance(command, TyperGroup):
        inner = [
            _command((name, part), entry, 3) for part, entry in command.commands.items() if not entry.hidden
        ]  # fmt: skip
        return paragraphs(title, sentence(command.help or ""), *inner)
    if name == WORKER:
        return paragraphs(title, sentence(command.help or ""), _worker_options())
    return _command((name,), command, 2)


def _command(words: tuple[str, ...], command: Any, level: int) -> str:
    entries = parameters(command)
    arguments = [_usage(entry) for entry in entries if isinstance(entry, TyperArgument)]
    options = [entry for entry in entries if not isinstance(entry, TyperArgument)]
    usage = " ".join([PROGRAM, *words, *arguments, *(["[OPTIONS]"] if options else [])])
    return paragraphs(
        heading(level, f"`{PROGRAM} {' '.join(words)}`", anchor(*words)),
        sentence(command.help or ""),
        f"```text\n{usage}\n```",
        table(("argument or option", "meaning"), (_row(anchor(*words), entry) for entry in entries)),
    )


def _usage(argument: TyperArgument) -> str:
    name = _argument_name(argument) + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _argument_name(argument: TyperArgument) -> str:
    return str(argument.metavar or argument.name).upper()


def _row(prefix: str, entry: Any) -> tuple[str, str]:
    is_argument = isinstance(entry, TyperArgument)
    names = (_argument_name(entry),) if is_argument else (*entry.opts, *entry.secondary_opts)
    variable = f"environment variable `{entry.envvar}`" if isinstance(entry.envvar, str) else ""
    default = "required" if entry.required else _default(entry.default)
    return _names(prefix, names), described(sentence(entry.help or ""), _value(entry), default, variable)


def _names(prefix: str, names: Sequence[str]) -> str:
    """Names of an argument or option; the first can be linked to, as `#shardtune-tune-ranks`."""
    first, *others = names
    return ", ".join([anchored_code(first, f"{prefix}-{slug(first)}"), *(f"`{name}`" for name in others)])


def _value(entry: Any) -> str:
    """Words for the values of an argument or option; empty for a flag."""
    if getattr(entry, "is_flag", False):
        return ""
    kind = entry.type_descriptor
    if kind.is_choice:
        text = ", ".join(f"`{choice.value if isinstance(choice, Enum) else choice}`" for choice in kind.choices or ())
    elif entry.metavar:
        text = f"`{entry.metavar}`"
    else:
        text = {"str": "text", "int": "whole number", "float": "number", "Path": "path"}.get(_bare(entry), _bare(entry))
    limits = [f"{sign} {value:,}" for sign, value in (("≥", entry.min), ("≤", entry.max)) if value is not None]
    text += f" ({', '.join(limits)})" if limits else ""
    return f"{text}, repeatable" if entry.multiple else text


def _bare(entry: Any) -> str:
    return str(entry.bare_type()).removeprefix("list[").removesuffix("]")


def _default(value: Any) -> str:
    if value is None or value is False or value == ():
        return ""
    return f"default `{value.value if isinstance(value, Enum) else value}`"


def _worker_options() -> str:
    parser = sources.worker_parser()
    parts = [table(("option", "meaning"), (_worker_row(anchor(WORKER), action) for action in _options(parser)))]
    shared = {action.dest for action in _options(parser)}
    for name, subparser, text in _subcommands(parser):
        prefix = anchor(WORKER, name)
        rows = [_worker_row(prefix, action) for action in _options(subparser) if action.dest not in shared]
        parts += [
            heading(3, f"`{PROGRAM} {WORKER} {name}`", prefix),
            sentence(text) + " It takes the options of the worker that describe the machine, too.",
            table(("argument or option", "meaning"), rows),
        ]
    return paragraphs(*parts)


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    skipped = (argparse._HelpAction, argparse._SubParsersAction)
    return [action for action in parser._actions if not isinstance(action, skipped)]


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, subparser in action.choices.items():
                yield name, subparser, texts.get(name, "")


def _worker_row(prefix: str, action: argparse.Action) -> tuple[str, str]:
    names = _names(prefix, action.option_strings or (action.dest.upper(),))
    if action.choices:
        value = ", ".join(f"`{choice}`" for choice in action.choices)
    elif action.nargs == 0 or not action.option_strings:
        value = ""
    else:
        value = f"`{action.metavar or action.dest.upper()}`"
    return names, described(sentence((action.help or "").replace("%%", "%")), value)

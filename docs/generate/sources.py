"""Reads from the product what reference pages state: the only module here that imports it."""

import argparse
import ast
import inspect
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_settings import BaseSettings
from typer.core import TyperCommand, TyperGroup

import shardtune
from shardtune.api_schemas.field_docs import field_docs
from shardtune.api_schemas.knobs import Knob
from shardtune.api_schemas.notifications import events
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudyRequest as StudyFile
from shardtune.service.app import create_app
from shardtune.service.cli import errors as cli_errors
from shardtune.service.cli.commands import app as commands
from shardtune.service.http.error_codes import CODES
from shardtune.service.python_api import arguments, service_calls
from shardtune.service.settings import Settings
from shardtune.tuner.search.space.backends.registry import BACKENDS
from shardtune.tuner.search.space.legal_values import COMMON
from shardtune.workers import __main__ as worker_main
from shardtune.workers.config.settings import WorkerSettings

__all__ = ["ROOT", "SETTINGS", "StudyFile"]

ROOT = Path(__file__).parents[2]
SETTINGS: Mapping[str, type[BaseSettings]] = {"service": Settings, "worker": WorkerSettings}


class ErrorCode(NamedTuple):
    """A code that a problem document of the REST API may carry."""

    code: str
    status: int
    meaning: str


class EventKind(NamedTuple):
    """A type of event, and whether a new webhook receives it unless its owner chooses types."""

    name: str
    meaning: str
    is_default_of_webhooks: bool


class ExitCode(NamedTuple):
    """An exit code of `shardtune`."""

    code: int
    meaning: str


class Setting(NamedTuple):
    """One field of a settings class."""

    name: str
    variable: str
    """Environment variable that sets it."""
    schema: Mapping[str, Any]
    """JSON schema of the value."""
    description: str
    """Empty: the field has no text under it."""
    file: str
    line: int
    """Position of the field in the repository."""


@cache
def openapi() -> dict[str, Any]:
    """OpenAPI document of the service, whose database is named and never opened."""
    unused = f"sqlite:///{tempfile.gettempdir()}/shardtune-docs.sqlite3"
    document: dict[str, Any] = create_app(Settings(database_url=unused), migrate=False).openapi()
    return document


@cache
def command_line() -> dict[str, TyperCommand | TyperGroup]:
    """Commands of `shardtune` by name, in the order of its help."""
    return {name: commands.command(name) for name in commands.COMMANDS}


def python_api() -> dict[str, Any]:
    """Public functions and classes of `import shardtune` by name, in the order in which it declares them."""
    return {name: getattr(shardtune, name) for name in shardtune._ATTRIBUTES if name != "ServiceClient"}


def python_aliases() -> dict[str, str]:
    """Meaning of each kind of argument of the Python API that has a name of its own."""
    return {
        name: text
        for module in (arguments, service_calls)
        for name, text in _alias_texts(ast.parse(inspect.getsource(module)))
    }


def fields_of(kind: type) -> dict[str, str]:
    """Meaning of each field of a class, inherited fields included."""
    return field_docs(kind)


def _alias_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for pair in pairwise(tree.body):
        match pair:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def worker_parser() -> argparse.ArgumentParser:
    """Options of `shardtune worker`, which passes its arguments on to this parser."""
    return worker_main._parser()


def settings(part: str) -> list[Setting]:
    """Fields of one settings class, in the order of the source.

    Raises:
        KeyError: no part of that name.
    """
    model = SETTINGS[part]
    schema = model.model_json_schema()
    texts, lines = field_docs(model), _field_lines(model)
    path = Path(inspect.getsourcefile(model) or "").resolve()
    prefix = model.model_config.get("env_prefix", "")
    return [
        Setting(
            name=name,
            variable=f"{prefix}{name}".upper(),
            schema=_resolved(schema["properties"][name], schema),
            description=texts.get(name, ""),
            file=str(path.relative_to(ROOT)),
            line=lines.get(name, 1),
        )
        for name in model.model_fields
    ]


def knobs() -> dict[str, dict[str, Knob]]:
    """Knobs by name, for each backend and for every backend (`common`)."""
    backends = {kind: backend.knobs for kind, backend in BACKENDS.items()}
    return {"common": COMMON, **backends}


def error_codes() -> list[ErrorCode]:
    """Codes of problem documents, in the order of their statuses."""
    return sorted((ErrorCode(code, *meaning) for code, meaning in CODES.items()), key=lambda entry: entry.status)


def event_kinds() -> list[EventKind]:
    """Types of events, in the order of the source."""
    texts = _member_docs(events.EventType)
    defaults = set(events.DEFAULT_WEBHOOK_EVENTS)
    return [EventKind(kind.value, texts.get(kind.name, ""), kind in defaults) for kind in events.EventType]


def study_reasons() -> list[tuple[str, str]]:
    """Codes of the reasons why studies stop, fail or wait, with their meaning."""
    texts = _member_docs(StudyReasonCode)
    return [(code.value, texts.get(code.name, "")) for code in StudyReasonCode]


def exit_codes() -> list[ExitCode]:
    """Exit codes of `shardtune`: success, and one for each kind of error that ends a command."""
    ends = [
        ExitCode(kind.exit_code, inspect.getdoc(kind) or "") for kind in cli_errors.CliError.__subclasses__()
    ]  # fmt: skip
    return [ExitCode(0, "The command has done its work."), *sorted(ends)]


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a reference by an object without fields: a setting's own fields are read from JSON."""
    if "$ref" not in schema:
        return schema
    target = document["$defs"][schema["$ref"].rpartition("/")[2]]
    return {**{key: value for key, value in target.items() if key != "properties"}, **schema, "$ref": ""}


@cache
def _class_node(kind: type) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(inspect.getmodule(kind)))  # type: ignore[arg-type]
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def _field_lines(kind: type) -> dict[str, int]:
    return {
        node.target.id: node.lineno
        for node in _class_node(kind).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _member_docs(kind: type[StrEnum]) -> dict[str, str]:
    """Texts under the members of an enumeration, by name."""
    texts = {}
    for pair in pairwise(_class_node(kind).body):
        match pair:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts

"""Names, docstrings and comments of Python source, each with its line."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PRAGMA = re.compile(
    r"^(?:noqa|type:|pragma|nosec|fmt:|isort:|ruff:|mypy:|pylint:|pyright:|hadolint|shellcheck|!|-\*-)", re.IGNORECASE
)
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER)


class Binding(NamedTuple):
    """A name that the source gives to a value."""

    line: int
    kind: str
    """`name`, `argument`, `function`, `class`; or `attribute`, `handler`, `pattern`, `import`, `literal`."""
    name: str


PLAIN = ("name", "argument", "function", "class")
"""Kinds of bindings by which other projects were measured; the remaining kinds count in this project's figure."""


class Docstring(NamedTuple):
    """A string that documents a module, class, function or attribute, or a help text of the CLI or the API."""

    line: int
    kind: str
    """`module`, `class`, `function`, `attribute` or `help`."""
    text: str

    @property
    def opening(self) -> str:
        return self.text.strip().partition("\n")[0]


class CommentCount(NamedTuple):
    """Lines with a comment that is no pragma, and lines with code."""

    comments: int
    code: int

    @property
    def per_100(self) -> float:
        return 100 * self.comments / self.code if self.code else 0.0


def _literals(node: ast.Subscript) -> Iterator[Binding]:
    name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    if name == "Literal":
        members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for member in members:
            if isinstance(member, ast.Constant) and isinstance(member.value, str):
                yield Binding(member.lineno, "literal", member.value)


def bindings(nodes: Iterable[ast.AST]) -> Iterator[Binding]:
    """Every name the source binds, enum members and the values of `Literal` included."""
    for node in nodes:
        match node:
            case ast.Name(ctx=ast.Store()):
                yield Binding(node.lineno, "name", node.id)
            case ast.arg():
                yield Binding(node.lineno, "argument", node.arg)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Binding(node.lineno, "function", node.name)
            case ast.ClassDef():
                yield Binding(node.lineno, "class", node.name)
            case ast.Attribute(ctx=ast.Store()):
                yield Binding(node.lineno, "attribute", node.attr)
            case ast.ExceptHandler(name=str(name)):
                yield Binding(node.lineno, "handler", name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield Binding(node.lineno, "pattern", name)
            case ast.alias(asname=str(name)) if name != node.name:
                yield Binding(node.lineno, "import", name)
            case ast.Subscript():
                yield from _literals(node)


def _string(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


def _kind(scope: ast.AST) -> str:
    return {"Module": "module", "ClassDef": "class"}.get(type(scope).__name__, "function")


def _help_texts(node: ast.Call) -> Iterator[Docstring]:
    for keyword in node.keywords:
        if keyword.arg in ("help", "description", "summary"):
            value = keyword.value
            if isinstance(value, ast.JoinedStr) and value.values:
                value = value.values[0]
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.strip():
                yield Docstring(keyword.value.lineno, "help", value.value)


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[Docstring]:
    """Docstrings of modules, classes and functions, the strings below attributes, and help texts."""
    for node in nodes:
        if isinstance(node, _SCOPES):
            for position, statement in enumerate(node.body):
                if (text := _string(statement)) is None:
                    continue
                if position == 0:
                    yield Docstring(statement.lineno, _kind(node), text)
                elif isinstance(node.body[position - 1], ast.Assign | ast.AnnAssign):
                    yield Docstring(statement.lineno, "attribute", text)
        elif isinstance(node, ast.Call):
            yield from _help_texts(node)


def _says_something(comment: str) -> bool:
    # A pragma may have its reason behind it: two comments on one line.
    parts = (part.strip() for part in comment.lstrip("#").split("# "))
    return any(part and not _PRAGMA.match(part) for part in parts)


def documented_lines(nodes: Iterable[ast.AST]) -> frozenset[int]:
    """Lines of strings that are statements: docstrings, and the strings below attributes."""
    return frozenset(
        line
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


def count_comments(source: str, documented: frozenset[int]) -> CommentCount:
    """Lines that are or carry a comment, and lines of code: neither blank nor among the documented ones."""
    commented, coded = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and _says_something(token.string):
            commented.add(token.start[0])
        elif token.type not in _LAYOUT:
            coded |= set(range(token.start[0], token.end[0] + 1))
    lines = source.splitlines()
    coded = {line for line in coded - documented if lines[line - 1].strip()}
    return CommentCount(len(commented), len(coded))

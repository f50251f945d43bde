"""Public names of `import shardtune`: functions, classes and aliases with their arguments, from signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from docs.generate import sources
from docs.generate.context import PageContext
from docs.generate.markdown import anchored_code, cell, code, described, heading, paragraphs, sentence, slug, table

_SECTION = re.compile(r"^(Args|Raises):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


def python_api(_context: PageContext) -> str:
    """Sections of all public functions and classes, and tables of the kinds of arguments and of the exceptions."""
    names = sources.python_api()
    functions = {name: value for name, value in names.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in names.items() if inspect.isclass(value)}
    errors = {name: value for name, value in classes.items() if issubclass(value, Exception)}
    return paragraphs(
        *(_function(name, value, 2) for name, value in functions.items()),
        *(_class(name, value) for name, value in classes.items() if name not in errors),
        heading(2, "Kinds of arguments", "python-arguments"),
        table(("kind", "values"), ((code(name), sentence(text)) for name, text in sources.python_aliases().items())),
        heading(2, "Exceptions", "python-exceptions"),
        table(("exception", "meaning"), (_error(name, value) for name, value in errors.items())),
    )


def _error(name: str, error: type[Exception]) -> tuple[str, str]:
    return anchored_code(name, _anchor(name)), cell(sentence(inspect.getdoc(error) or ""))


def _anchor(*words: str) -> str:
    return slug(" ".join(("python", *words)))


def _class(name: str, kind: type) -> str:
    own = [
        member for member in vars(kind).items() if inspect.isroutine(_plain(member[1])) and member[0] in _shown(kind)
    ]
    fields = sources.fields_of(kind)
    return paragraphs(
        heading(2, code(name), _anchor(name)),
        _text(inspect.getdoc(kind) or ""),
        table(("field", "meaning"), ((code(field), sentence(text)) for field, text in fields.items())),
        *(_function(f"{name}.{method}" if method != "__init__" else name, _plain(value), 3) for method, value in own),
    )


def _shown(kind: type) -> Iterator[str]:
    """Names of the methods that the class itself writes and documents."""
    for name, value in vars(kind).items():
        method = _plain(value)
        is_public = not name.startswith("_") or (name == "__init__" and inspect.isfunction(method))
        # A dataclass has an __init__ that nobody wrote.
        if (
            is_public
            and inspect.isroutine(method)
            and "__dataclass_fields__" not in (vars(kind) if name == "__init__" else {})
        ):
            yield name


def _plain(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _function(name: str, function: Callable[..., Any], level: int) -> str:
    parts = _docstring(inspect.getdoc(function) or "")
    arguments = _entries(parts.get("Args", ""))
    raises = _entries(parts.get("Raises", ""))
    anchor = _anchor(name) if level == 2 else f"{_anchor(name)}-{slug(function.__name__)}"
    kinds = _kinds(function)
    rows = [
        (code(argument), described(sentence(text), kinds.get(argument, ""))) for argument, text in arguments.items()
    ]
    return paragraphs(
        heading(level, code(f"{name}()"), anchor),
        f"```text\n{name}{_signature(function)}\n```",
        _text(parts[""]),
        table(("argument", "meaning"), rows),
        table(("raises", "when"), ((code(error), sentence(text)) for error, text in raises.items())),
    )


def _signature(function: Callable[..., Any]) -> str:
    """Names and defaults of a function's arguments; the table below it has their kinds."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in ("self", "cls"):
            shown.append(parameter.replace(annotation=inspect.Parameter.empty))
    return str(inspect.Signature(shown))


def _kinds(function: Callable[..., Any]) -> Mapping[str, str]:
    """Annotation of each argument as its source writes it, and whether it is required."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    arguments = [*definition.args.args, *definition.args.kwonlyargs]
    return {
        # A pipe would end the cell of the table.
        argument.arg: " or ".join(map(code, ast.unparse(argument.annotation).split(" | ")))
        for argument in arguments
        if argument.annotation is not None
    }


def _docstring(text: str) -> dict[str, str]:
    """Sections of a docstring by their heading; the text before them has none."""
    first, *rest = _SECTION.split(text)
    return {"": first} | dict(zip(rest[::2], map(textwrap.dedent, rest[1::2]), strict=True))


def _entries(section: str) -> dict[str, str]:
    """Entries `name: text` of a section, whose text may go on over indented lines."""
    _, *rest = _ENTRY.split(section.strip("\n"))
    return dict(zip(rest[::2], (" ".join(text.split()) for text in rest[1::2]), strict=True))


def _text(text: str) -> str:
    """Paragraphs of a docstring on one line each."""
    return paragraphs(*(" ".join(part.split()) for part in text.split("\n\n")))

"""Field descriptions, read from the docstrings in the source when a schema is asked for.

Pydantic would read it as each class is made (`use_attribute_docstrings`), which is half of what importing these modules takes:
every command, worker and rank would wait for texts that only the OpenAPI document shows.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise


def field_docs(model: type) -> dict[str, str]:
    """Return the descriptions of a class of this package by field name, inherited fields included."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("shardtune."):
            docs |= _docs_of_module(base.__module__).get(base.__name__, {})
    return docs


@cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: dict(_field_texts(node)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _field_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for pair in pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)

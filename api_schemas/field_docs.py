"""Field descriptions for JSON schemas, read from docstrings in the source only when a schema is requested. Pydantic's
`use_attribute_docstrings` would read them at import, which doubles the import time of every command, worker and rank.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise


def field_docs(model: type) -> dict[str, str]:
    """Return the descriptions of a schema class's fields by field name, inherited fields included."""
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

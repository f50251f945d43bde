"""`import shardtune` is light, and offers what it declares."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shardtune

HEAVY = (
    "torch",
    "sqlalchemy",
    "fastapi",
    "starlette",
    "optuna",
    "huggingface_hub",
    "mcp",
    "jinja2",
    "pandas",
    "mlflow",
)
SOURCE = Path(shardtune.__file__).read_text()


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(ran.stdout.splitlines()[-1].split())


def test_the_import_alone_loads_no_part_of_the_package_and_no_library():
    before, after = loaded_after("import typing"), loaded_after("import shardtune")
    own = {"shardtune"} | {name for name in after if name.startswith("encodings")}
    assert after - before <= own


def test_a_prediction_needs_no_torch_no_database_and_no_web_framework():
    blocked = f"for name in {HEAVY!r}: sys.modules[name] = None\n"
    code = f"{blocked}import shardtune as st\nst.predict('gpt2', '2xh100', top=1)._repr_html_()"
    assert "shardtune.service.python_api.predictions" in loaded_after(code)


def test_every_declared_name_exists_and_is_seen_by_type_checkers():
    (block,) = (node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    declared = {name.asname or name.name for node in block.body for name in node.names}
    assert declared == set(shardtune._ATTRIBUTES) == set(shardtune.__all__) - {"__version__"}
    assert declared <= set(dir(shardtune))
    for name in declared:
        assert getattr(shardtune, name).__doc__


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'predictt'"):
        shardtune.predictt  # noqa: B018

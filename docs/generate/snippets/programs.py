"""Runs blocks of Python, each in a process and an empty folder of its own."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from docs.generate.sources import ROOT

_LIMIT_S = 120


def compile_problem(text: str) -> str:
    """Why Python does not compile a block."""
    try:
        compile(text, "snippet", "exec")
    except SyntaxError as error:
        return f"is not Python: line {error.lineno}: {error.msg}"
    return ""


def import_problem(text: str, folder: Path) -> str:
    """Why an import of Shardtune in a block that does not run fails; the block compiles."""
    imports = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if _imports_shardtune(node)]
    return run_problem("\n".join(imports), folder) if imports else ""


def _imports_shardtune(node: ast.AST) -> bool:
    """Whether a statement imports a module or a name of Shardtune."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "shardtune"
    return isinstance(node, ast.Import) and any(name.name.partition(".")[0] == "shardtune" for name in node.names)


def run_problem(text: str, folder: Path) -> str:
    """Why a block fails when it runs in `folder`: the end of what it wrote to stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    return "" if ran.returncode == 0 else "does not run: " + ran.stderr.strip()[-2000:]

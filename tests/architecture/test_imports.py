"""Modules that each part of the product may load. The import contract itself (import-linter) runs in `make check`;
these run the parts."""

import subprocess
import sys

import pytest


def _modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "shardtune.service.app",
        "shardtune.service.cli",
        "shardtune.tuner.search.suggest",
        "shardtune.db.tables.studies",
        "shardtune.workers.agent.loop",
    ],
)
def test_only_ranks_load_torch(module: str) -> None:
    assert not {"torch", "deepspeed", "transformers"} & _modules_after(f"import {module}")


def test_an_agent_runs_on_a_host_without_the_service_packages() -> None:
    loaded = _modules_after("import shardtune.workers.agent.loop, shardtune.workers.commands.dispatch")
    assert not {"fastapi", "sqlalchemy", "optuna", "uvicorn", "alembic"} & loaded


def test_the_shared_language_needs_pydantic_only() -> None:
    loaded = _modules_after(
        "import shardtune.api_schemas.trials.leases, shardtune.api_schemas.studies.study, shardtune.api_schemas.trials.trial"
    )
    assert not {"httpx", "fastapi", "sqlalchemy", "psutil"} & loaded

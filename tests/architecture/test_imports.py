"""Modules that each part of the product may load. The import contract itself (import-linter) runs in `make check`;
these run the parts."""

import subprocess
import sys


def _modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_only_ranks_load_torch() -> None:
    """One process imports all of them: what none of them has loaded at the end, each leaves alone."""
    modules = (
        "shardtune.workers.agent.loop",
        "shardtune.db.tables.studies",
        "shardtune.tuner.search.suggest",
        "shardtune.service.app",
        "shardtune.service.cli",
    )
    assert not {"torch", "deepspeed", "transformers"} & _modules_after(f"import {', '.join(modules)}")


def test_an_agent_runs_on_a_host_without_the_service_packages() -> None:
    loaded = _modules_after("import shardtune.workers.agent.loop, shardtune.workers.commands.dispatch")
    assert not {"fastapi", "sqlalchemy", "optuna", "uvicorn", "alembic"} & loaded


def test_the_shared_language_needs_pydantic_only() -> None:
    loaded = _modules_after(
        "import shardtune.api_schemas.trials.leases, shardtune.api_schemas.studies.study, shardtune.api_schemas.trials.trial"
    )
    assert not {"httpx", "fastapi", "sqlalchemy", "psutil"} & loaded

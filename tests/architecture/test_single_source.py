"""Facts that stand in one place only: SQL in db, the open states and the ends of attempts in api_schemas."""

import ast
import json
from pathlib import Path

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.trial import AttemptEnd
from shardtune.service.settings import SECRET_FIELDS, Settings

ROOT = Path(__file__).parents[2]
SQL = {"select", "insert", "update", "delete", "func", "text"}


def test_the_service_writes_no_sql():
    actual = [
        f"{path.relative_to(ROOT)}: {alias.name}"
        for path in (ROOT / "service").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy"
        for alias in node.names
        if alias.name in SQL
    ]
    assert actual == []


def test_only_the_schemas_list_the_open_states():
    pairs = ({"RUNNING", "PAUSED"}, {"WAITING", "RUNNING"}, {"QUEUED", "RUNNING"})
    actual = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("db/queries", "db/tables", "service", "tuner")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
        if {item.attr for item in node.elts if isinstance(item, ast.Attribute)} in pairs and len(node.elts) == 2
    ]
    assert actual == []


def test_only_the_schemas_know_dtypes_and_the_loss_by_their_words():
    """Others ask `Precision` and `TrialConfig`, so that the next precision or loss is declared in one place."""
    fields = {"master_dtype", "compute_dtype", "reduce_dtype", "weights_dtype", "loss"}
    actual = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("db", "service", "tuner", "workers")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(side, ast.Attribute) and side.attr in fields for side in (node.left, *node.comparators))
        and any(_is_word(side) for side in (node.left, *node.comparators))
    ]
    assert actual == []


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_an_attempt_can_end_by_every_kind_of_failure():
    own = {AttemptEnd.COMPLETE, AttemptEnd.RELEASED, AttemptEnd.PREEMPTED, AttemptEnd.CANCELLED}
    assert {end.value for end in set(AttemptEnd) - own} == {kind.value for kind in FailureKind}


def test_catching_everything_has_its_reason_beside_it():
    """The borders are a request, a background loop and a rank's entry; any other place says why it is one."""
    borders = {"service/process/background.py", "workers/rank/main.py"}
    actual = []
    for folder in ("api_schemas", "db", "service", "traces", "tuner"):
        for path in (ROOT / folder).rglob("*.py"):
            name, lines = str(path.relative_to(ROOT)), path.read_text().splitlines()
            actual += [
                f"{name}:{number}"
                for number, line in enumerate(lines, 1)
                if "except Exception" in line and "# a border" not in line and name not in borders
            ]
    assert actual == []


def test_the_chart_knows_the_settings_of_the_service() -> None:
    schema = json.loads((ROOT / "deploy/helm/shardtune/values.schema.json").read_text())
    variables = schema["properties"]["service"]["properties"]["settings"]["properties"]
    # Secret ones belong into the Secret, and these two have values of their own.
    elsewhere = {*SECRET_FIELDS, "require_keys", "trusted_proxies"}
    assert sorted(variables) == sorted(
        f"SHARDTUNE_{name.upper()}" for name in Settings.model_fields if name not in elsewhere
    )

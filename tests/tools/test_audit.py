"""The audit of the pinned versions never passes unseen: where the index gives no answer, it fails if it is required."""

import pytest

from tests.tools.audit import main


@pytest.mark.parametrize(("variables", "code"), [({}, 0), ({"SHARDTUNE_AUDIT_REQUIRED": "1"}, 1)])
def test_an_audit_that_was_left_out_says_so_and_fails_where_it_is_required(
    variables, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tests.tools.audit._DONE", tmp_path / "audited")
    monkeypatch.setattr("tests.tools.audit._INDEX", "http://127.0.0.1:1/pypi")
    monkeypatch.delenv("SHARDTUNE_AUDIT_REQUIRED", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main() == code
    assert "left out, since http://127.0.0.1:1/pypi cannot be reached" in capsys.readouterr().out
    assert not (tmp_path / "audited").exists(), "the next run asks again"

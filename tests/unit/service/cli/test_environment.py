"""Settings from the environment: what is wrong is named, and a secret is repeated nowhere."""

import pytest

from shardtune.service.cli import main

SECRET = "hunter2"
WRONG = [
    ("SHARDTUNE_SECRET_KEY", SECRET),
    ("SHARDTUNE_DATABASE_URL", f"mysql://u:{SECRET}@h/x"),
    ("SHARDTUNE_DATABASE_URL", f"postgresql://u:{SECRET}@[h/x"),
    ("SHARDTUNE_DATABASE_URL", f"u:{SECRET}@h"),
    ("SHARDTUNE_DATABASE_URL", f"oracle://h/x?password={SECRET}"),
    ("SHARDTUNE_DATABASE_URL", f"postgresql://u:{SECRET}@127.0.0.1:1/x?sslpassword={SECRET}"),
]


@pytest.mark.parametrize(("variable", "value"), WRONG)
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["keys", "list"], ["db", "upgrade"]], ids=" ".join)
def test_an_error_names_the_variable_and_no_secret(monkeypatch, capsys, sqlite_url, command, variable, value):
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", sqlite_url)
    monkeypatch.setenv(variable, value)
    if variable == "SHARDTUNE_SECRET_KEY" and command[0] == "db":
        pytest.skip("it reads no other variable")
    with pytest.raises(SystemExit) as ended:
        main(command)
    captured = capsys.readouterr()
    assert ended.value.code and variable in captured.err
    assert SECRET not in captured.err + captured.out


def test_what_is_no_json_is_named(monkeypatch, capsys):
    monkeypatch.setenv("SHARDTUNE_MEASURE", "soon")
    with pytest.raises(SystemExit):
        main(["serve"])
    assert "measure" in capsys.readouterr().err

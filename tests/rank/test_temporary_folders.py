"""Reading of exported files by the tools' own parsers: no temporary folder stays behind."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from shardtune.workers.rank import check_finetuning

VALUES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
PARSED = SimpleNamespace(**VALUES, finetuning_type="full", tuner_type="full", cutoff_len=64, max_length=64)


def parse_factory(values: dict[str, Any]) -> tuple[Any, ...]:
    assert Path(values["output_dir"]).is_dir()
    return None, PARSED, PARSED, PARSED, None


def parse_swift(_: object, words: list[str]) -> tuple[Any, list[str]]:
    assert (Path(words[words.index("--model") + 1]) / "config.json").is_file()
    return PARSED, []


@pytest.mark.parametrize("tool", ["llama_factory", "ms_swift"])
def test_a_parser_of_a_tool_leaves_no_temporary_folder(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {
        "llamafactory.hparams": SimpleNamespace(get_train_args=parse_factory),
        "swift.cli.main": SimpleNamespace(parse_yaml_args=lambda words: None),
        "swift.utils": SimpleNamespace(parse_args=parse_swift),
        "swift.arguments": SimpleNamespace(SftArguments=object),
    }
    for name in (*modules, "llamafactory", "swift", "swift.cli"):
        monkeypatch.setitem(sys.modules, name, modules.get(name, SimpleNamespace(__path__=[])))
    for name in ("DISABLE_VERSION_CHECK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        # `read_llama_factory` sets it for its own process, which here is the test's.
        monkeypatch.setenv(name, "0")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / f"{tool}.yaml").write_text(yaml.safe_dump(VALUES))
    assert "batch 2" in getattr(check_finetuning, f"read_{tool}")(tmp_path)
    assert not [*(tmp_path / "tmp").iterdir()]

"""Arguments that the adapter of Hugging Face's Trainer sets are listed, and a script that sets them, too, is named by line."""

import subprocess
import sys
from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.strategies.training_arguments import strategy_arguments, workload_arguments
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.workers.adapter import trainer_arguments
from shardtune.workers.adapter.trial import AdapterError

WORKLOAD = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-mixed"])
STRATEGIES = ({"kind": "ddp"}, {"kind": "zero", "stage": 2, "deepcompile": True}, {"kind": "zero", "stage": 3},
              {"kind": "fsdp2", "dp_shard": 2})  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("sync", ["every", "last"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_list_holds_every_argument_that_the_adapter_sets(strategy: dict, sync: str, precision: str) -> None:
    workload = WORKLOAD.model_copy(update={"precision": PRECISIONS[precision]})
    changes = {} if strategy["kind"] == "zero" else {"grad_sync": sync}
    config = TrialConfig.model_validate({"strategy": strategy | changes})
    rendered = strategy_arguments(config, workload, 4, None) | workload_arguments(workload, on_cpu=False)
    assert rendered.keys() <= trainer_arguments.SET_BY_ADAPTER


def script(tmp_path: Path, call: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(f"import x\narguments = {call}\n")
    return path


@pytest.mark.parametrize(
    "call",
    [
        "TrainingArguments(\n    bf16=True,\n    **training_arguments(trial))",
        "SFTConfig(**shardtune.adapter.trainer.training_arguments(trial),\n    bf16=True)",
        "TrainingArguments(\n    bf16=True,\n    **{'output_dir': 'o', **training_arguments(trial)})",
    ],
)
def test_an_argument_set_twice_is_named_with_file_and_line(tmp_path: Path, call: str) -> None:
    path = script(tmp_path, call)
    with pytest.raises(AdapterError) as error:
        trainer_arguments.check_script(path)
    assert f"{path}:3: bf16" in str(error.value) and "remove them there" in str(error.value)


def test_a_variable_with_the_arguments_is_followed(tmp_path: Path) -> None:
    path = script(tmp_path, "training_arguments(trial)\nTrainingArguments(seed=1, optim='sgd', **arguments)")
    with pytest.raises(AdapterError, match=r"train\.py:3: optim, .*train\.py:3: seed"):
        trainer_arguments.check_script(path)


@pytest.mark.parametrize(
    "call",
    [
        "TrainingArguments(output_dir='o', max_steps=3, **training_arguments(trial))",
        "TrainingArguments(bf16=True)",
        "TrainingArguments(bf16=True, **other)",
        "(",
    ],
)
def test_other_scripts_pass(tmp_path: Path, call: str) -> None:
    trainer_arguments.check_script(script(tmp_path, call))
    trainer_arguments.check_script(tmp_path / "missing.py")


def test_the_script_that_imports_the_adapter_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        "from shardtune.workers.adapter.trainer_arguments import check_importer\ncheck_importer()\n"
        "def later():\n    TrainingArguments(seed=1, **training_arguments(trial))\n"
    )
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 1 and f"{path}:4: seed" in ran.stderr


def test_the_documentation_lists_every_argument() -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "own-code.md").read_text()
    assert set(page.split()) >= trainer_arguments.SET_BY_ADAPTER

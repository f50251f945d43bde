"""Fine-tuning as its user runs it: `shardtune tune OWNER/NAME --lora 16 --data lengths.jsonl`, interrupted and resumed,
and the files of four tools, each read by the tool's own code in its environment of `make test-consumers`.

The hub is on loopback, and serves a tiny Llama with weights and tokenizer.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.support.long_run import WIDE
from tests.support.service.model_hub import COMMIT, TINY, ModelHub, model_hub

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(3600), WIDE]

ROOT = Path(__file__).parents[2]
MODEL, RANK = "org/tiny", 16
ADAPTED = 2 * RANK * (2 * (128 + 128) + 2 * (128 + 64) + 3 * (128 + 256))
"""Trained parameters: adapters on the seven linear layers of two blocks."""
QUICK = {"parity_steps": 3, "max_warmup_steps": 2, "window_steps": 2, "min_windows": 3, "max_windows": 3}
QUICK |= {"min_measure_s": 0}
"""A user's runs are longer."""
TOOLS = {
    "trl": ".venv-consumers",
    **{tool: f".venv-tools/{tool}" for tool in ("axolotl", "llama-factory", "ms-swift")},
}
"""Environments of `make test-consumers` by export format."""
STEPS = 20


@dataclass(frozen=True)
class Tuned:
    """Folder of a finished `tune`, with what the command printed."""

    folder: Path
    answer: dict[str, Any]
    interrupted: str
    """Progress of the command that was interrupted in its first trial."""
    progress: str
    """Progress of the command that continued."""
    hub: ModelHub

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.hub, self.folder)


def environment(hub: ModelHub, folder: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    return kept | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
        "SHARDTUNE_MEASURE": json.dumps(QUICK),
    }


def publish(hub: ModelHub, folder: Path) -> None:
    """Put weights and tokenizer of the tiny model into the hub."""
    vocabulary = {"<unk>": 0, "<pad>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, 512)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    fast.save_pretrained(folder)
    config = LlamaConfig(**{key: value for key, value in TINY.items() if key != "model_type"})
    LlamaForCausalLM(config).save_pretrained(folder)
    for path in folder.iterdir():
        if path.name != "config.json":
            hub.files[f"{MODEL}/{path.name}"] = path.read_bytes()


def write_data(folder: Path) -> None:
    """Write a data set of short and long samples, and the lengths of its samples beside it."""
    (folder / "data").mkdir()
    draw = random.Random(1)
    # The tokenizer adds one end of sequence to each sample in TRL.
    counts = [draw.choice((7, 7, 7, 15, 15, 31, 63)) for _ in range(400)]
    # Few different words, so that 20 steps learn something.
    texts = [" ".join(f"w{draw.randrange(3, 11)}" for _ in range(count)) for count in counts]
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "lengths.jsonl").write_text("".join(f"{count + 1}\n" for count in counts))


def shardtune(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shardtune", *arguments]


def interrupt_in_a_trial(folder: Path, variables: dict[str, str]) -> str:
    """Start the study, and interrupt it as Ctrl-C does while a trial runs; what the command said.

    Two trials are the fewest with an answer: two backends must agree.
    """
    command = shardtune("tune", MODEL, "--lora", str(RANK), "--data", "lengths.jsonl", "--max-trials", "2", "--json")
    lines: list[str] = []
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line.startswith("trial 0 (") and line.endswith("running\n"):
                process.send_signal(signal.SIGINT)
                break
        lines.append(process.communicate(timeout=120)[1])
    assert process.returncode == 130, "".join(lines)
    return "".join(lines)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    folder = tmp_path_factory.mktemp("fine-tuning")
    write_data(folder)
    with model_hub() as hub:
        publish(hub, folder / "published")
        variables = environment(hub, folder)
        interrupted = interrupt_in_a_trial(folder, variables)
        # The stored study has the model: a hub that is away must not keep it from going on.
        offline = variables | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            shardtune("tune", "--resume", "--json"),
            cwd=folder,
            env=offline,
            capture_output=True,
            text=True,
            timeout=2400,
        )
        assert done.returncode == 0, done.stderr
        yield Tuned(folder, json.loads(done.stdout), interrupted, done.stderr, hub)


def test_the_study_is_of_the_named_model_its_adapter_and_its_samples(tuned: Tuned) -> None:
    assert f"model {MODEL} at commit {COMMIT}" in tuned.interrupted
    assert f"LoRA r={RANK}" in tuned.interrupted and "8 to 64 tokens" in tuned.interrupted
    # Begun as here: `python -m shardtune`.
    assert f"continue with: {sys.executable} -m shardtune tune --resume --json" in tuned.interrupted
    task = json.loads((tuned.folder / "best" / "config.json").read_text())
    assert task["model"]["hub"] == {"id": MODEL, "revision": COMMIT}
    assert task["workload"]["adapter"]["rank"] == RANK and task["workload"]["sequence_length"] == 64
    lengths = dict(task["workload"]["data"]["lengths"])
    assert lengths.keys() == {8, 16, 32, 64} and sum(lengths.values()) == 400


def test_one_command_answers_and_its_answer_goes_on_from_a_checkpoint_of_the_adapter(tuned: Tuned) -> None:
    answer = tuned.answer
    assert answer["verdict"] in ("confirmed", "not_faster", "undecided", "too_busy") and answer["trust"]
    assert answer["trials"]["complete"] == 2 and answer["best"]["tokens_per_s_per_gpu"] > 0
    check = answer["resume_check"]
    assert check["outcome"] == "passed", check
    # Weights and two moments in float32: the frozen weights are no part of a checkpoint.
    assert check["checkpoint_bytes"] < 1.5 * 12 * ADAPTED, check


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tools_own_code_reads_its_file(tuned: Tuned, tool: str) -> None:
    python = interpreter(tool)
    folder = exported(tuned, tool)
    offline = tuned.environment | {"HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "shardtune.workers.rank.check_export", tool, str(folder)]
    done = subprocess.run(command, env=offline, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    check = json.loads(done.stdout.strip().splitlines()[-1])
    assert check["checked"], check
    if tool != "trl":
        assert f"LoRA r={RANK}" in check["says"] and " 64" in check["says"], check
    (file,) = (path for path in folder.glob("*.yaml") if path.name != "accelerate.yaml")
    assert MODEL in file.read_text() and COMMIT in file.read_text()


def test_trl_trains_with_the_files_as_they_were_exported(tuned: Tuned) -> None:
    python, folder = interpreter("trl"), exported(tuned, "trl")
    command = [str(python), "-m", "torch.distributed.run", "--nproc_per_node", "2", "trl_sft.py"]
    command += ["--config", "trl_sft.yaml", "--output_dir", "out", "--dataset_name", str(tuned.folder / "data")]
    command += ["--max_steps", str(STEPS), "--logging_steps", "1", "--report_to", "none"]
    variables = tuned.environment | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    losses = [float(loss) for loss in re.findall(r"'loss': '?([\d.]+)", done.stdout)]
    assert len(losses) == STEPS and mean(losses[-5:]) < mean(losses[:5]), done.stdout[-2000:]
    adapter = json.loads((folder / "out" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["base_model_name_or_path"]) == (RANK, MODEL)


def exported(tuned: Tuned, tool: str) -> Path:
    """Export the answer for a tool, once; its folder."""
    folder = tuned.folder / tool
    if not folder.exists():
        command = shardtune("export", "last", "--format", tool, "--out", tool, "--json")
        done = subprocess.run(
            command, cwd=tuned.folder, env=tuned.environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    return folder


def interpreter(tool: str) -> Path:
    """Interpreter that has the tool at its pins."""
    python = ROOT / TOOLS[tool] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{TOOLS[tool]} is not there: `make test-consumers` makes it")
    return python

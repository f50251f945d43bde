"""Imports of the fork server: none may initialise CUDA or start a thread, because no rank could be forked after it.

One process imports for itself and answers the tests of what has been imported; the others are forks that have torch imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.workers.launch import Launch
from tests.support.processes import preloaded_forks

LORA = {
    "plain": "peft.tuners.lora.layer",
    "imported_early": [],
    "quantised": "peft.tuners.lora.bnb",
    "flat": ["first.weight"],
    "imported_by_use": ["torchao", "bitsandbytes"],
    "lora_looks_for_torchao": True,
    "transformers_has_torchao": True,
}

COLD = """
import json, os, sys
from shardtune.workers.rank.fork_server import early_imports
from shardtune.workers.rank.fork_server.server import ForkServer

def imported(*names):
    return [name for name in names if name in sys.modules]

def ready():
    orders, no_more = os.pipe()
    os.close(no_more)
    events, server_events = os.pipe()
    ForkServer(orders, server_events).run()
    event = json.loads(os.read(events, 1 << 16))
    return [event["unsafe"], event["operators_built"], "torch.utils.cpp_extension" in sys.modules]

def preloaded():
    for name in (*early_imports.LATE_IMPORTS, "peft", "transformers.models.llama.modeling_llama"):
        early_imports.import_if_there(name)
    return imported("torchao", "bitsandbytes", "torch.utils.cpp_extension")

def lora():
    import peft, torch
    from peft import helpers
    from peft.tuners.lora import model as lora, torchao as lora_of_torchao
    from torch import nn
    from transformers.quantizers import quantizer_torchao
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
    def adapt(name):
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=[name]), model)
        return type(model[name]).__module__
    plain = adapt("first")
    early = imported("torchao", "bitsandbytes")
    packed = helpers.bnb.nn.Linear4bit(8, 8)
    model["second"], model.is_loaded_in_4bit = packed, True
    quantised = adapt("second")
    flat, _ = quantizer_torchao.flatten_tensor_state_dict({"first.weight": torch.ones(2)})
    return {
        "plain": plain,
        "imported_early": early,
        "quantised": quantised,
        "flat": [*flat],
        "imported_by_use": imported("torchao", "bitsandbytes"),
        "lora_looks_for_torchao": lora_of_torchao.is_torchao_available(),
        "transformers_has_torchao": quantizer_torchao.is_torchao_available(),
    }

answers = {"ready": ready(), "preloaded": preloaded()}
print(json.dumps(answers), flush=True)
print(json.dumps(answers | {"lora": lora()}))
"""

PRELOAD = """
import json, os, sys
from shardtune.workers.rank.fork_server import early_imports
os.environ["DS_ACCELERATOR"] = sys.argv[1]
sys.path.insert(0, sys.argv[2])
for name in ("initialises_cuda", "starts_a_thread", "harmless"):
    early_imports.import_if_forkable(name)
print(json.dumps([name for name in ("initialises_cuda", "starts_a_thread", "harmless") if name in sys.modules]))
"""

PREPARES = """
import os, sys, time
from pathlib import Path
from shardtune.workers.rank.fork_server import early_imports, forking, server
from shardtune.workers.rank.process import cpu_time
def burn(_task):
    begin = time.process_time()
    while time.process_time() - begin < 1.0: pass
def report(folder):
    (folder / f"spent_{os.environ['LOCAL_RANK']}").write_text(str(cpu_time.spent_s()))
    return 0
early_imports.LATE_IMPORTS = ()
early_imports.preload, forking.PROGRAMS = burn, {"trial": report}
server.trial_dir.read_task, server.uses_cpu_adam = lambda folder: None, lambda task: False
orders, events = (os.open(path, flag) for path, flag in zip(sys.argv[1:], (os.O_RDONLY, os.O_WRONLY)))
server.ForkServer(orders, events).run()
"""


def fork(code: str, *arguments: str, folder: Path) -> tuple[Any, Path]:
    """Start code in a fork that has the libraries imported; its process, and the file of its output."""
    script, output = folder / "script.py", folder / "printed"
    script.write_text(code)
    return preloaded_forks.fork(preloaded_forks.script, script, *arguments, output=output), output


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of a process that is first a fork server, then imports what adapters and models need, then uses it.

    `lora` is missing where a library of it is.
    """
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("extensions"))}
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=False, env=environment)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"ready"')]
    assert answers, done.stderr
    return answers[-1] | {"end": (done.returncode, done.stderr)}


def test_the_fork_server_imports_no_library_that_asks_the_gpu(cold: dict[str, Any]) -> None:
    assert cold["preloaded"] == []


def test_a_fork_server_that_is_ready_has_not_asked_for_gpus_itself(cold: dict[str, Any]) -> None:
    assert cold["ready"] == [None, False, False]


@pytest.mark.parametrize(
    ("device", "imported"),
    [("cuda", ["harmless"]), ("cpu", ["initialises_cuda", "starts_a_thread", "harmless"])],
)
def test_on_gpus_ranks_import_what_would_keep_them_from_being_forked(
    tmp_path: Path, device: str, imported: list[str]
) -> None:
    (tmp_path / "initialises_cuda.py").write_text("import torch\ntorch.cuda._initialized = True\n")
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    (tmp_path / "harmless.py").write_text("")
    process, output = fork(PRELOAD, device, str(tmp_path), folder=tmp_path)
    process.join(120)
    printed = output.read_text()
    assert process.exitcode == 0, printed
    assert json.loads(printed.splitlines()[-1]) == imported


def test_libraries_are_found_once_they_are_used(cold: dict[str, Any]) -> None:
    pytest.importorskip("torchao")
    pytest.importorskip("bitsandbytes")
    assert cold.get("lora") == LORA, cold["end"]


def test_the_first_rank_counts_the_fork_servers_preparation_as_its_own_work(tmp_path: Path) -> None:
    """An import in the fork server must not look like another program that disturbs the run."""
    order = {"launch": str(tmp_path), "as": Launch.of(2).model_dump(mode="json")}
    pipes = tmp_path / "orders", tmp_path / "events"
    for pipe in pipes:
        os.mkfifo(pipe)
    server, _ = fork(PREPARES, *map(str, pipes), folder=tmp_path)
    with pipes[0].open("w") as orders, pipes[1].open() as lines:
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        events = [json.loads(lines.readline()) for _ in range(4)]
    server.join(60)
    assert server.exitcode == 0
    assert [event["event"] for event in events] == ["ready", "started", "exited", "exited"]
    first_s, second_s = (float((tmp_path / f"spent_{rank}").read_text()) for rank in range(2))
    assert 1.0 <= first_s - second_s < 3.0

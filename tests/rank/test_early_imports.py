"""Imports of the fork server: none may initialise CUDA or start a thread, because no rank could be forked after it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.workers.launch import Launch

FORK_SERVER = """
import json, sys
from shardtune.workers.rank.fork_server import early_imports, server
for name in (*early_imports.LATE_IMPORTS, "peft", "transformers.models.llama.modeling_llama"):
    early_imports.import_if_there(name)
print(json.dumps([name for name in ("torchao", "bitsandbytes", "torch.utils.cpp_extension") if name in sys.modules]))
"""

READY = """
import json, os, sys
from shardtune.workers.rank.fork_server.server import ForkServer
orders, no_more = os.pipe()
os.close(no_more)
events, server_events = os.pipe()
ForkServer(orders, server_events).run()
ready = json.loads(os.read(events, 1 << 16))
print(json.dumps([ready["unsafe"], ready["operators_built"], "torch.utils.cpp_extension" in sys.modules]))
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

LORA = """
import shardtune.workers.rank
import json, sys
import peft, torch
from peft import helpers
from peft.tuners.lora import model as lora, torchao as lora_of_torchao
from torch import nn
from transformers.quantizers import quantizer_torchao
LIBRARIES = ("torchao", "bitsandbytes")
model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
def adapt(name):
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=[name]), model)
    return type(model[name]).__module__
plain = adapt("first")
early = [name for name in LIBRARIES if name in sys.modules]
packed = helpers.bnb.nn.Linear4bit(8, 8)
model["second"], model.is_loaded_in_4bit = packed, True
quantised = adapt("second")
flat, _ = quantizer_torchao.flatten_tensor_state_dict({"first.weight": torch.ones(2)})
print(json.dumps({
    "plain": plain,
    "imported_early": early,
    "quantised": quantised,
    "flat": [*flat],
    "imported_by_use": [name for name in LIBRARIES if name in sys.modules],
    "lora_looks_for_torchao": lora_of_torchao.is_torchao_available(),
    "transformers_has_torchao": quantizer_torchao.is_torchao_available(),
}))
"""

PREPARES = """
import os, time
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
server.ForkServer(0, 1).run()
"""


def printed(code: str, *arguments: str) -> Any:
    """JSON value in the last line that the code prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_fork_server_imports_no_library_that_asks_the_gpu() -> None:
    assert printed(FORK_SERVER) == []


def test_a_fork_server_that_is_ready_has_not_asked_for_gpus_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert printed(READY) == [None, False, False]


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
    assert printed(PRELOAD, device, str(tmp_path)) == imported


def test_libraries_are_found_once_they_are_used() -> None:
    pytest.importorskip("torchao")
    pytest.importorskip("bitsandbytes")
    assert printed(LORA) == {
        "plain": "peft.tuners.lora.layer",
        "imported_early": [],
        "quantised": "peft.tuners.lora.bnb",
        "flat": ["first.weight"],
        "imported_by_use": ["torchao", "bitsandbytes"],
        "lora_looks_for_torchao": True,
        "transformers_has_torchao": True,
    }


def test_the_first_rank_counts_the_fork_servers_preparation_as_its_own_work(tmp_path: Path) -> None:
    """An import in the fork server must not look like another program that disturbs the run."""
    launch = Launch.of(2)
    order = {"launch": str(tmp_path), "as": launch.model_dump(mode="json")}
    with subprocess.Popen([sys.executable, "-c", PREPARES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(order).encode() + b"\n")
        server.stdin.flush()
        events = [json.loads(server.stdout.readline()) for _ in range(4)]
        server.stdin.close()
    assert [event["event"] for event in events] == ["ready", "started", "exited", "exited"]
    first_s, second_s = (float((tmp_path / f"spent_{rank}").read_text()) for rank in range(2))
    assert 1.0 <= first_s - second_s < 3.0

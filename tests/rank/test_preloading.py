"""Imports of the fork server: none may initialise CUDA or start a thread, because no rank could be forked after it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FORK_SERVER = """
import json, sys
from shardtune.workers.rank.fork_server import preloading, server
for name in (*preloading.LATE_IMPORTS, "transformers.models.llama.modeling_llama"):
    preloading.import_if_there(name)
print(json.dumps([name for name in ("torchao", "bitsandbytes") if name in sys.modules]))
"""

PRELOAD = """
import json, os, sys
from shardtune.workers.rank.fork_server import preloading
os.environ["DS_ACCELERATOR"] = sys.argv[1]
sys.path.insert(0, sys.argv[2])
for name in ("initialises_cuda", "starts_a_thread", "harmless"):
    preloading.import_if_forkable(name)
print(json.dumps([name for name in ("initialises_cuda", "starts_a_thread", "harmless") if name in sys.modules]))
"""

LORA = """
import shardtune.workers.rank
import json, sys
import peft, torch
from peft.tuners.lora import torchao as lora_of_torchao
from torch import nn
from transformers.quantizers import quantizer_torchao
model = nn.ModuleDict({"first": nn.Linear(8, 8)})
peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["first"]), model)
early = "torchao" in sys.modules
before = lora_of_torchao.is_torchao_available()
flat, metadata = quantizer_torchao.flatten_tensor_state_dict({"first.weight": torch.ones(2)})
print(json.dumps({
    "has_adapter": hasattr(model["first"], "lora_A"),
    "imported_by_lora": early,
    "lora_looks_before": before,
    "flat": [*flat],
    "imported_by_use": "torchao" in sys.modules,
    "lora_looks_after": lora_of_torchao.is_torchao_available(),
    "transformers_has_it": quantizer_torchao.is_torchao_available(),
}))
"""


def printed(code: str, *arguments: str) -> Any:
    """JSON value in the last line that the code prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_fork_server_imports_no_library_that_asks_the_gpu() -> None:
    assert printed(FORK_SERVER) == []


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


def test_transformers_and_lora_find_torchao_once_it_is_used() -> None:
    pytest.importorskip("torchao")
    assert printed(LORA) == {
        "has_adapter": True,
        "imported_by_lora": False,
        "lora_looks_before": False,
        "flat": ["first.weight"],
        "imported_by_use": True,
        "lora_looks_after": True,
        "transformers_has_it": True,
    }

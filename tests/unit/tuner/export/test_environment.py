"""Every export says the environment that was measured; a worker's words set nothing that could run."""

import os
import re
import subprocess
from typing import get_args

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.tuner.export import export, files
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.launcher_exports import LAUNCHERS
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

KEEP = TrialConfig(strategy=DdpConfig(), malloc="keep")
SETTINGS_TEXT = "MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483647"
FORMS = sorted(set(get_args(ExportFormat)) - set(LAUNCHERS))
"""Forms whose files state a command; a launcher's file sets variables, and starts launch.sh."""


def study(*worker: str, **changes: object):  # type: ignore[no-untyped-def]
    return study_of(**changes).model_copy(  # type: ignore[arg-type]
        update={"fingerprint": FINGERPRINT.model_copy(update={"environment": worker, "cpu_count": 8})}
    )


def sourced(script: str) -> dict[str, str]:
    """The variables that the script's lines of exports leave, as bash understands them."""
    lines = "\n".join(line for line in script.splitlines() if line.startswith(("export ", "#")))
    done = subprocess.run(["bash", "-c", f"{lines}\nenv -0"], capture_output=True, text=True, check=True, env={})
    return dict(variable.split("=", 1) for variable in done.stdout.split("\0") if variable)


def test_the_launcher_exports_what_was_measured() -> None:
    sources = sourced(
        files(study("GLOO_SOCKET_IFNAME=eth1", "OMP_PROC_BIND=close", "NCCL_ALGO=Ring"), contender_of(KEEP))[
            "launch.sh"
        ]
    )
    assert sources.items() >= {
        "OMP_NUM_THREADS": "4", "MALLOC_TRIM_THRESHOLD_": "2147483647", "OMP_PROC_BIND": "close",
        "GLOO_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Ring",
    }.items()  # fmt: skip
    plain = sourced(files(study(), contender_of(TrialConfig(strategy=DdpConfig())))["launch.sh"])
    assert plain["OMP_NUM_THREADS"] == "4" and not any(name.startswith("MALLOC") for name in plain)


@pytest.mark.parametrize("form", FORMS)
def test_every_consumer_is_told(form: str) -> None:
    actual_files = export(study("OMP_NUM_THREADS=3"), contender_of(KEEP), form)  # type: ignore[arg-type]
    for name, text in actual_files.files.items():
        if name.endswith((".py", ".yaml", ".toml")):
            assert f"OMP_NUM_THREADS=3 {SETTINGS_TEXT}" in text, name
    assert form == "standard" or form in COMMANDS or any(SETTINGS_TEXT in line for line in actual_files.lossy)


COMMANDS = {
    "trl": "torchrun ",
    "axolotl": "axolotl train",
    "llama-factory": "llamafactory-cli",
    "ms-swift": "swift sft",
}


@pytest.mark.parametrize("form", COMMANDS)
def test_a_header_sets_the_environment_before_the_command_that_it_names(form: str) -> None:
    """Whoever copied the command alone would start ranks without what made the winner fast."""
    worker = ("OMP_NUM_THREADS=3", "NCCL_ALGO=Ring", "LD_PRELOAD=/tmp/x.so")
    exported = export(study(*worker), contender_of(KEEP), form)  # type: ignore[arg-type]
    headers = [text for name, text in exported.files.items() if name.endswith((".py", ".yaml"))]
    assert headers
    for text in headers:
        lines = [line.lstrip("# ") for line in text.splitlines()]
        (at,) = [number for number, line in enumerate(lines) if line.startswith("export ")]
        assert COMMANDS[form] in lines[at + 1]
        assert sourced(lines[at]).items() >= {"OMP_NUM_THREADS": "3", "NCCL_ALGO": "Ring"}.items()
        assert "LD_PRELOAD" not in lines[at]
    assert not any("start the ranks with" in line for line in exported.lossy)


@pytest.mark.parametrize("form", LAUNCHERS)
def test_a_launcher_s_file_sets_each_variable_and_its_script_binds_ranks(form: ExportFormat) -> None:
    kept = export(study("OMP_NUM_THREADS=3"), contender_of(KEEP), form).files
    (own_name,) = kept.keys() - files(study(), contender_of(KEEP)).keys()
    for name, value in [("OMP_NUM_THREADS", "3"), *(setting.split("=") for setting in SETTINGS_TEXT.split())]:
        assert re.search(rf"{name}\W+(value\W+)?{value}\b", kept[own_name]), name
    bound = contender_of(TrialConfig(strategy=DdpConfig(), numa_binding="node"))
    gpus = CPU.model_copy(update={"device": "cuda"})
    assert "--numa-binding=node" in export(study(cluster=gpus), bound, form).files["launch.sh"]


def test_deepspeeds_launcher_takes_it_to_other_nodes() -> None:
    several = CPU.model_copy(update={"nodes": 2})
    zero = TrialConfig(strategy=ZeroConfig(stage=1), malloc="keep")
    actual_files = files(study(cluster=several, global_batch=16), contender_of(zero))
    assert actual_files[".deepspeed_env"].splitlines() == ["OMP_NUM_THREADS=4", *SETTINGS_TEXT.split()]
    assert ".deepspeed_env" not in files(study(), contender_of(zero))


def test_accelerate_starts_each_node_of_deepspeed_by_itself() -> None:
    """Its default would reach the other nodes by pdsh, from each node on which launch.sh runs."""
    zero = contender_of(TrialConfig(strategy=ZeroConfig(stage=2)))
    several = files(study(cluster=CPU.model_copy(update={"nodes": 2}), global_batch=16), zero)
    assert "  deepspeed_multinode_launcher: standard\n" in several["accelerate.yaml"]
    assert "multinode" not in files(study(), zero)["accelerate.yaml"]


@pytest.mark.parametrize("form", ["trl", "torchtitan", "axolotl", "llama-factory", "ms-swift"])
def test_a_header_s_command_makes_several_nodes_meet(form: ExportFormat) -> None:
    """Without it each node would train by itself, with its own part of the global batch."""
    nodes = CPU.model_copy(update={"nodes": 2})
    ddp = contender_of(TrialConfig(strategy=DdpConfig()))
    rendezvous = "--nnodes 2 --rdzv_id shardtune --rdzv_backend c10d --rdzv_endpoint FIRST_HOST:29500"
    if form in ("llama-factory", "ms-swift"):
        rendezvous = "NPROC_PER_NODE=2 NNODES=2 NODE_RANK=N MASTER_ADDR=FIRST_HOST MASTER_PORT=29500 "
    several = export(study(cluster=nodes, global_batch=16), ddp, form).files
    headers = [text for name, text in several.items() if name.endswith((".py", ".yaml"))]
    assert headers and all(rendezvous in text and "each of the 2 nodes; FIRST_HOST is" in text for text in headers)
    assert not any("FIRST_HOST" in text for text in export(study(), ddp, form).files.values())


def test_what_a_worker_says_is_told_and_never_run() -> None:
    hostile = (
        "LD_PRELOAD=/tmp/evil.so",
        "NCCL_NET_PLUGIN=/tmp/x.so",
        "NCCL_ALGO=$(touch /tmp/x)",
        "PATH=/tmp",
        "A\nB=1",
        "NCCL_TUNER_PLUGIN=evil",
        "NCCL_GRAPH_DUMP_FILE=train.py",
        "PYTORCH_TUNABLEOP_FILENAME=launch.sh",
    )
    script = files(study(*hostile, "NCCL_PROTO=LL,LL128"), contender_of(KEEP))["launch.sh"]
    sources = sourced(script)
    assert sources["NCCL_PROTO"] == "LL,LL128"
    assert not {item.partition("=")[0] for item in (*hostile, "B=1") if not item.startswith("PATH")} & sources.keys()
    assert sources.get("PATH") != "/tmp"
    assert "# environment: the worker also had LD_PRELOAD set, to /tmp/evil.so" in script
    assert os.environ.get("LD_PRELOAD") is None


@pytest.mark.parametrize("form", FORMS)
def test_the_binding_of_gpu_ranks_to_cores_is_exported_in_every_form(form: str) -> None:
    gpus = CPU.model_copy(update={"device": "cuda"})
    for mode in ("node", "exclusive"):
        bound = contender_of(TrialConfig(strategy=DdpConfig(), numa_binding=mode))
        actual_files = export(study(cluster=gpus), bound, form)  # type: ignore[arg-type]
        for name, text in actual_files.files.items():
            if name.endswith((".py", ".yaml", ".toml", ".sh")):
                assert f"--numa-binding={mode}" in text, name
        assert form == "standard" or any(mode in line for line in actual_files.lossy)
        # LLaMA-Factory and ms-swift call torchrun themselves, and pass it no such option.
        if form in ("trl", "axolotl"):
            headers = [text for name, text in actual_files.files.items() if name.endswith((".py", ".yaml"))]
            assert all(re.search(rf"--nproc_per_node 2 --numa-binding={mode}\b", text) for text in headers)
    on_cpu = files(study(), contender_of(TrialConfig(strategy=DdpConfig(), numa_binding="node")))
    assert not any("numa-binding" in text for name, text in on_cpu.items() if name != "config.json")

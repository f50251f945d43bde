"""Names from users change a literal or a comment of an exported file, and never the code around it.

The names get past the patterns at the border here (`model_copy` validates nothing): one alone has to be enough.
"""

import ast
import json
import re
import shlex
import subprocess
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.api_schemas.studies.study import Study
from shardtune.tuner.export import export
from shardtune.tuner.export.launchers.gpu_names import extended_resource
from tests.support.values.launcher_exports import LAUNCHERS
from tests.support.values.synthetic_studies import contender_of, study_of

EIGHT = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
DDP = TrialConfig(strategy=DdpConfig(), activation_checkpointing="full")
FSDP1 = TrialConfig(strategy=Fsdp1Config(dp_shard=8))
FSDP2 = TrialConfig(strategy=Fsdp2Config(dp_shard=8, forward_prefetch=2))
ZERO = TrialConfig(strategy=ZeroConfig(stage=3))
EXPORTS: list[tuple[TrialConfig, ExportFormat]] = [
    *((config, "standard") for config in (DDP, FSDP1, FSDP2, ZERO)),
    *((config, "lightning") for config in (DDP, FSDP2, ZERO)),
    *((config, "training-arguments") for config in (DDP, FSDP2, ZERO)),
    *((config, "trl") for config in (DDP, FSDP2, ZERO)),
    *((config, "axolotl") for config in (DDP, FSDP2, ZERO)),
    *((config, "llama-factory") for config in (DDP, FSDP2, ZERO)),
    *((config, "ms-swift") for config in (DDP, FSDP2, ZERO)),
    *((config, "torchtitan") for config in (DDP, FSDP2)),
    *((DDP, form) for form in LAUNCHERS),
]
ENDS = [
    *('"""', "'''", '"', "'", "\\", "\n", "\r", "\x0b", "\x0c", "\x1b[2J", "\x85", "\u2028", "\u202e", "\\N{", "\\x"),
    *("$(id)", "`id`", "${HOME}", "$model_name", "#", "{{", "}}", "%s", ";", "&&", "\n---\n", "]]>", ": ", "- ", "*/"),
]
NAMES = st.lists(st.sampled_from(ENDS) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4))
WORDS = NAMES.map("".join).filter(bool)


def test_every_format_is_among_the_exports_of_this_file() -> None:
    assert {form for _, form in EXPORTS} == set(get_args(ExportFormat))


def named(model: str, blocks: str, block_class: str, moe_class: str, gpu: str) -> Study:
    """A study whose every word from outside is as given."""
    study = study_of("mixtral-tiny", "bf16-mixed", EIGHT, global_batch=32)
    assert study.model_summary is not None
    block = study.model_summary.blocks[0].model_copy(update={"name": f"{blocks}.0"})
    words = {"blocks": (block,), "block_class": block_class, "moe_class": moe_class}
    cluster = EIGHT.model_copy(update={"gpu": gpu})
    spec = study.spec.model_copy(
        update={"model": study.spec.model.model_copy(update={"name": model}), "cluster": cluster}
    )
    return study.model_copy(
        update={
            "study_id": model,
            "spec": spec,
            "cluster": cluster,
            "model_summary": study.model_summary.model_copy(update=words),
        }
    )


def shape(value: Any) -> Any:
    """A parsed document without its texts."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else "" if isinstance(value, str) else value


def tree(source: str) -> str:
    """The syntax tree without what its texts say."""
    parse = ast.parse(source)
    for node in ast.walk(parse):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(parse)


def tokens(script: str) -> list[str]:
    return list(shlex.shlex(script, posix=True, punctuation_chars=True))


STRUCTURES = {
    ".py": tree,
    ".sh": tokens,
    ".json": lambda text: shape(json.loads(text)),
    ".yaml": lambda text: shape(list(yaml.safe_load_all(text))),
    ".yml": lambda text: shape(yaml.safe_load(text)),
}


def structures(study: Study, config: TrialConfig, form: ExportFormat) -> dict[str, Any]:
    files = export(study, contender_of(config), form).files
    return {name: STRUCTURES[name[name.rindex(".") :]](text) for name, text in files.items()}


@pytest.mark.parametrize(("config", "form"), EXPORTS, ids=lambda value: getattr(value, "backend", value))
def test_names_change_no_structure(config: TrialConfig, form: ExportFormat) -> None:
    # A vendor's name of a GPU chooses the resource by which Kubernetes counts it, and so is to change a key.
    plain = {
        extended_resource(gpu): structures(named("tiny", "model.layers", "Layer", "Experts", gpu), config, form)
        for gpu in ("NVIDIA H100", "AMD Instinct")
    }

    @settings(max_examples=40, deadline=None)
    @given(st.tuples(WORDS, WORDS, WORDS, WORDS, WORDS))
    def check(words: tuple[str, str, str, str, str]) -> None:
        assert structures(named(*words), config, form) == plain[extended_resource(words[4])]

    check()


@pytest.mark.parametrize("name", ["launch.sh", "launch.sbatch"])
def test_the_shell_reads_the_launchers_to_their_ends(name: str) -> None:
    word = "".join(ENDS)
    study = named(word, word, word, word, word)
    over_two = study.model_copy(update={"cluster": study.cluster.model_copy(update={"nodes": 2})})
    script = export(over_two, contender_of(ZERO), "standard").files[name]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=10)
    assert [line for line in script.splitlines() if re.search(r"\$\(id\)|`id`", line.partition("#")[0])] == []

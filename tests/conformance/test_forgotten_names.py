"""Lists of file names, extras and environment variables know every export, optimizer and engine."""

import tomllib
from collections.abc import Mapping
from typing import get_args

import pytest
from packaging.requirements import Requirement

from shardtune.api_schemas.machines.engines import RANK_VARIABLES, EngineName
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.service.cli.write_files import EXPORTED
from shardtune.service.studies.changes import page
from shardtune.tuner.export import bundle
from tests.conformance.registries import PRODUCT, ROOT
from tests.support.values.synthetic_studies import contender_of, study_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NODES = Cluster(gpu="NVIDIA H100 80GB HBM3", nodes=2, gpus_per_node=4, memory_gib=80, host_memory_gib=1000)
STRATEGIES: Mapping[str, Strategy] = {
    "ddp": DdpConfig(),
    "zero": ZeroConfig(stage=3),
    "fsdp2": Fsdp2Config(dp_shard=8),
    "fsdp1": Fsdp1Config(dp_shard=8),
}


def _standard_files(kind: str) -> set[str]:
    contender = contender_of(TrialConfig(strategy=STRATEGIES[kind]))
    study = study_of("llama-tiny", "bf16-mixed", NODES, global_batch=32)
    return {*bundle.files(study, contender)}


@pytest.mark.parametrize("kind", PRODUCT.schemas)
def test_a_new_export_removes_each_standard_file_of_an_earlier_one(kind: str) -> None:
    assert _standard_files(kind) - {*EXPORTED} == set(), "service/cli/write_files.py: EXPORTED lacks these"


def test_a_new_export_removes_the_files_of_launchers_and_the_changes() -> None:
    assert {page.FILE, *(launcher.file for launcher in bundle.LAUNCHERS.values())} <= {*EXPORTED}


def extras_without(optimizers: Mapping[str, object]) -> list[str]:
    """One sentence for each optimizer whose package no declared extra of pyproject.toml installs."""
    extras = {
        extra: {Requirement(line).name for line in lines} for extra, lines in PROJECT["optional-dependencies"].items()
    }
    return [
        f"pyproject.toml: extra {extra} of optimizer {kind!r} does not install {package}"
        for kind, optimizer in optimizers.items()
        if (package := getattr(optimizer, "package", None)) is not None
        and package not in extras.get(extra := getattr(optimizer, "extra", None), ())
    ]


def test_each_optimizers_package_is_in_its_extra() -> None:
    assert extras_without(OPTIMIZERS) == []


def test_a_planted_optimizer_without_its_extra_is_named() -> None:
    class Planted:
        package, extra = "planted", None

    assert extras_without({"planted": Planted()}) == [
        "pyproject.toml: extra None of optimizer 'planted' does not install planted"
    ]


def optimizers_without_resume_check(source: str, optimizers: Mapping[str, object]) -> list[str]:
    """Optimizers whose state no resume check saves and loads."""
    return [
        f"tests/rank/test_resume_check.py has no case of {kind!r}"
        for kind in optimizers
        if kind != DEFAULT_OPTIMIZER and f'"{kind}"' not in source
    ]


def test_the_state_of_each_optimizer_is_saved_and_loaded_by_a_resume_check() -> None:
    source = (ROOT / "tests/rank/test_resume_check.py").read_text()
    assert optimizers_without_resume_check(source, OPTIMIZERS) == []
    assert optimizers_without_resume_check(source, {"planted": None}) == [
        "tests/rank/test_resume_check.py has no case of 'planted'"
    ]


ENGINES = get_args(EngineName)


def test_each_engine_says_which_variables_its_ranks_must_not_inherit() -> None:
    assert {*RANK_VARIABLES} == {*ENGINES}, "api_schemas/machines/engines.py: RANK_VARIABLES"
    assert all(RANK_VARIABLES.values())


@pytest.mark.parametrize(
    "place",
    [
        "README.md",
        ".github/ISSUE_TEMPLATE/bug.yml",
        "docs/reference/glossary.md",
        "docs/how-to/hosts.md",
        "docs/how-to/deploy.md",
        "docs/contributing/laboratory.md",
        "tests/lab/laboratory.py",
        "workers/config/settings.py",
    ],
)
def test_each_text_names_every_engine(place: str) -> None:
    text = (ROOT / place).read_text().casefold()
    assert [engine for engine in ENGINES if engine not in text] == [], place

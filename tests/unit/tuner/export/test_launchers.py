"""Files for SkyPilot, dstack, Kubeflow Trainer and Ray: what each says, and what it leaves to its reader."""

import ast
import re
from typing import Any

import pytest
import yaml

from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.api_schemas.training.optimizers import OPTIMIZERS
from shardtune.tuner.export import export
from shardtune.tuner.export.launchers import launch_facts, trainjob
from shardtune.tuner.export.source import ExportSource
from tests.support.values.launcher_exports import (
    A100,
    DDP,
    FSDP2,
    H100,
    LAUNCHERS,
    MEASURED,
    UNKNOWN,
    ZERO,
    exported,
    of_own_code,
)  # fmt: skip
from tests.support.values.synthetic_studies import CPU, contender_of, study_of, with_float8

FILES = {"skypilot": "skypilot.yaml", "dstack": "train.dstack.yml", "trainjob": "trainjob.yaml", "ray": "ray_job.py"}


def own_code(form: ExportFormat, cluster: Any = H100) -> str:
    study = of_own_code(study_of("llama-tiny", "bf16-mixed", cluster, global_batch=32))
    return export(study, contender_of(DDP), form).files[FILES[form]]


@pytest.mark.parametrize("form", LAUNCHERS)
def test_the_files_that_the_launcher_starts_are_beside_it(form: ExportFormat) -> None:
    assert {"config.json", "launch.sh", "train_snippet.py", FILES[form]} <= exported(form).files.keys()
    assert "ds_config.json" in exported(form, config=ZERO).files


@pytest.mark.parametrize("form", LAUNCHERS)
def test_what_the_file_cannot_say_is_said_in_its_notes(form: ExportFormat) -> None:
    made = exported(form)
    notes = "\n".join(made.lossy)
    for words in (
        "image:",
        "machines: 2 nodes of 8 × NVIDIA H100",
        "torch 2.13.0+cu130",
        "another CUDA",
        "NCCL_SOCKET_IFNAME",
    ):
        assert words in notes
    # A loss of accelerate.yaml, which every launcher's folder holds, stands in that file.
    losses = [line.partition("accelerate.yaml: ") for line in made.lossy]
    assert all((lost or line) in made.files["accelerate.yaml" if lost else FILES[form]] for line, _, lost in losses)
    assert made.lossy_config is None, "a launcher changes no knob"


@pytest.mark.parametrize("form", LAUNCHERS)
def test_own_code_has_a_marked_place_for_its_script(form: ExportFormat) -> None:
    text = own_code(form)
    assert "torch.distributed.run" in text and "SET-ME" in text
    assert "launch.sh" not in text and "script: set SET-ME" in text


@pytest.mark.parametrize("form", LAUNCHERS)
def test_a_worker_s_variable_is_set_only_where_its_value_is_allowed(form: ExportFormat) -> None:
    hostile = MEASURED.model_copy(update={"environment": ("NCCL_ALGO=$(id)", "LD_PRELOAD=/evil.so", "NCCL_PROTO=LL")})
    text = exported(form, fingerprint=hostile).files[FILES[form]]
    assert re.search(r"NCCL_PROTO['\"]?[:=]|name: NCCL_PROTO", text)
    for value in ("/evil.so", "$(id)"):
        lines = [line for line in text.splitlines() if value in line]
        assert lines, "the note says what the worker had"
        assert [line for line in lines if not line.lstrip().startswith(("#", "-"))] == []


@pytest.mark.parametrize("form", LAUNCHERS)
@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_packages_of_float8_and_of_flash_attention_are_installed_or_named(form: ExportFormat, attention: str) -> None:
    study = with_float8(study_of("llama-tiny", "bf16-mixed", H100, global_batch=32), "tensorwise")
    assert study.model_summary is not None
    summary = study.model_summary.model_copy(update={"attention": attention})
    study = study.model_copy(update={"model_summary": summary})
    text = export(study, contender_of(DDP), form).files[FILES[form]]
    assert "torchao" in text
    assert ("flash-attn" in text) == (attention == "flash_attention_2")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_package_of_an_optimizer_is_installed(kind: str) -> None:
    study = study_of("llama-tiny", "bf16-true" if kind == "adamw-bf16" else "bf16-mixed", H100, global_batch=32)
    optimizer = OPTIMIZERS[kind]
    workload = study.spec.workload.model_copy(update={"optimizer": optimizer})
    study = study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})
    packages = launch_facts.requirements(ExportSource.of(study, contender_of(DDP)))
    assert packages == ["torch", "transformers", *([optimizer.package] if optimizer.package else [])]


def test_a_gpu_that_the_launcher_cannot_name_is_noted_with_the_reason() -> None:
    h20 = H100.model_copy(update={"gpu": "H20-96GB"})
    for form in ("skypilot", "dstack"):
        (note,) = [line for line in exported(form, h20).lossy if line.startswith("gpu: set SET-ME")]
        assert note.endswith("has no name for H20-96GB: neither SkyPilot 0.14 nor gpuhunt 0.1 lists it")


def test_flash_attention_is_built_once_torch_is_there() -> None:
    study = study_of("llama-tiny", "bf16-mixed", H100, global_batch=32)
    assert study.model_summary is not None
    summary = study.model_summary.model_copy(update={"attention": "flash_attention_2"})
    source = ExportSource.of(study.model_copy(update={"model_summary": summary}), contender_of(DDP))
    assert launch_facts.install_commands(source, "--python x") == [
        "uv pip install --python x torch transformers",
        "uv pip install --python x ninja packaging psutil setuptools wheel",
        "uv pip install --python x --no-build-isolation flash-attn",
    ]


def test_versions_are_pinned_without_their_local_part_and_only_where_they_are_versions() -> None:
    def requirements(**versions: str | None) -> list[str]:
        study = study_of("llama-tiny", "bf16-mixed", H100, global_batch=32)
        fingerprint = MEASURED.model_copy(update=versions)
        source = ExportSource.of(study.model_copy(update={"fingerprint": fingerprint}), contender_of(ZERO))
        return launch_facts.requirements(source)

    assert requirements() == ["torch==2.13.0", "transformers==5.23.0", "deepspeed==0.19.8"]
    assert requirements(torch="2.13; rm -rf ~", transformers="5\n.2", deepspeed=None) == [
        "torch",
        "transformers",
        "deepspeed",
    ]


@pytest.mark.parametrize(
    ("study_id", "name"),
    [
        ("nightly", "train-nightly"),
        ("team-a.nightly", "train-team-a-nightly"),
        ("x: {y\n- z", "train-x-y-z"),
        ("a" * 100, "train-" + "a" * 35),
        ("\u2028", "train"),
    ],
)
def test_a_name_has_letters_digits_and_hyphens(study_id: str, name: str) -> None:
    study = study_of().model_copy(update={"study_id": study_id})
    made = launch_facts.task_name(ExportSource.of(study, contender_of(DDP)))
    assert made == name and re.fullmatch(r"[a-z][a-z0-9-]{1,39}[a-z0-9]", made)


def test_the_gpu_is_named_as_the_launcher_names_it_or_marked() -> None:
    def resources(form: ExportFormat, cluster: Any) -> str:
        values = yaml.safe_load(exported(form, cluster).files[FILES[form]])["resources"]
        return str(values.get("accelerators", values.get("gpu")))

    assert (resources("skypilot", A100), resources("dstack", A100)) == ("A100-80GB:8", "A100:80GB:8")
    assert (resources("skypilot", UNKNOWN), resources("dstack", UNKNOWN)) == ("SET-ME:4", "SET-ME:4")
    assert any("Unobtainium" in line and "SET-ME" in line for line in exported("skypilot", UNKNOWN).lossy)
    assert resources("dstack", CPU) == "0"


@pytest.mark.parametrize(("form", "name"), [("skypilot", "SkyPilot's A100-80GB"), ("dstack", "dstack's A100:80GB")])
def test_a_name_that_means_other_models_too_is_noted(form: ExportFormat, name: str) -> None:
    notes = [line for line in exported(form, A100).lossy if line.startswith("gpu: ")]
    assert notes == [f"gpu: A100-SXM4-80GB was measured; {name} can also be A100-PCIe-80GB"]
    l4 = A100.model_copy(update={"gpu": "NVIDIA L4"})
    assert not [line for line in exported(form, l4).lossy if line.startswith("gpu: ")]


@pytest.mark.parametrize("form", ["skypilot", "dstack", "trainjob"])
def test_the_header_asks_to_set_places_only_where_there_are_any(form: ExportFormat) -> None:
    for cluster in (H100, UNKNOWN):
        text = exported(form, cluster).files[FILES[form]]
        document = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert ("Set every SET-ME below" in text) == ("SET-ME" in document)


def test_a_trainjob_sets_no_variable_that_trainer_sets() -> None:
    _, job = yaml.safe_load_all(exported("trainjob", config=FSDP2).files["trainjob.yaml"])
    trainer = job["spec"]["trainer"]
    names = [variable["name"] for variable in trainer["env"]]
    assert "MALLOC_TRIM_THRESHOLD_" in names and not [name for name in names if name.startswith("PET_")]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "8"}}


def test_kubernetes_takes_a_value_as_it_is() -> None:
    assert trainjob.literal_value("a $(PATH) $$b") == "a $$(PATH) $$$$b"


def test_gpus_of_amd_are_counted_by_their_own_resource() -> None:
    amd = H100.model_copy(update={"gpu": "AMD Instinct MI300X OAM"})
    assert "amd.com/gpu: '8'" in exported("trainjob", amd).files["trainjob.yaml"]
    outside_the_catalogue = H100.model_copy(update={"gpu": "AMD Instinct MI999Y"})
    assert "amd.com/gpu: '8'" in exported("trainjob", outside_the_catalogue).files["trainjob.yaml"]


def test_a_gpu_of_an_unknown_vendor_has_a_note_on_its_resource() -> None:
    def has_note(gpu: str) -> bool:
        made = exported("trainjob", H100.model_copy(update={"gpu": gpu}))
        return any(line.startswith("gpu: nvidia.com/gpu is assumed") for line in made.lossy)

    assert has_note("Strange Device 7")
    assert not has_note("NVIDIA H100 80GB HBM3") and not has_note("NVIDIA Unobtainium 9000")


def test_ray_reserves_each_node_and_compiles() -> None:
    text = exported("ray").files["ray_job.py"]
    ast.parse(text)
    assert 'NODES = 2\nBUNDLE = {"GPU": 8}\n' in text and 'COMMAND = ["bash", "launch.sh"]' in text


@pytest.mark.parametrize("form", ["skypilot", "dstack"])
def test_a_projected_answer_claims_no_measurement_on_its_machines(form: ExportFormat) -> None:
    study = study_of("llama-tiny", "bf16-mixed", A100, global_batch=32)
    projected = contender_of(DDP).model_copy(update={"runs": 0})
    notes = export(study, projected, form).lossy
    assert any(
        "machines: the figures are projected to 8 × NVIDIA A100-SXM4-80GB, where nothing was measured" in line
        for line in notes
    ), notes
    assert any("gpu: A100-SXM4-80GB is projected, and was not measured" in line for line in notes), notes

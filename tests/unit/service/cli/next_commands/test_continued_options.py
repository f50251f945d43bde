"""Options with which `tune` continues a study: rejected where they would change it, and handed to its worker."""

from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import continuation, job
from tests.unit.service.cli.next_commands.undecided_study import options, undecided


@pytest.mark.parametrize("flag", [{"resume": True}, {"add_pairs": 6}])
@pytest.mark.parametrize("option", [{"memory_gib": 2.0}, {"max_trials": 3}, {"study": Path("study.json")}])
def test_a_continued_study_refuses_every_option_that_it_would_ignore(
    tmp_path: Path, flag: dict[str, Any], option: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"would change the study .* leave it out"):
        job.tune(options(**{"study": None, "state_dir": tmp_path / "state"} | flag | option))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("device", "offered", "is_rejected"), [
    ("cpu", 2, False), ("cpu", 4, True), ("cpu", None, False), ("cuda", 4, False), ("cuda", 1, True),
])  # fmt: skip
def test_ranks_that_a_continued_study_does_not_have_are_rejected(
    device: str, offered: int | None, is_rejected: bool
) -> None:
    study, _ = undecided(None)
    gpu = "H100-SXM5-80GB" if device == "cuda" else "cpu"
    study = study.model_copy(
        update={
            "state": StudyState.RUNNING,
            "cluster": Cluster(device=device, gpu=gpu, gpus_per_node=2, memory_gib=4, host_memory_gib=8),  # type: ignore[arg-type]
        }
    )

    class Client:
        def studies(self) -> list[Study]:
            return [study]

    resumed = options(study=None, resume=True, ranks=offered)
    if is_rejected:
        with pytest.raises(InputError, match=r"--ranks \(.\) would change the study"):
            continuation.find(Client(), resumed)  # type: ignore[arg-type]
    else:
        assert continuation.find(Client(), resumed) is study  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "launcher", "error"),
    [
        ((), None, r"--launcher \(missing\) offers 1 of the 2 nodes of the study that --resume continues; add"),
        (("--launcher", "slurm", "--nodes", "1"), None, r"--nodes \(1\) offers 1 of the 2 nodes .* leave it out"),
        (("--launcher", "local"), None, r"--launcher \(local\) offers 1 of the 2 nodes .* add --launcher slurm or ray"),
        (("--launcher", "local"), "slurm", r"--launcher \(local\) offers 1 of the 2 nodes"),
        ((), "local", r"--launcher \(local\) offers 1 of the 2 nodes"),
        ((), "", r"--launcher \(missing\) offers 1 of the 2 nodes"),
        (("--launcher", "slurm"), "local", None),
        (("--launcher", "slurm"), None, None),
        (("--launcher", "slurm", "--nodes", "4"), None, None),
        ((), "slurm", None),
    ],
)
def test_nodes_that_a_continued_study_needs_are_offered_or_named(
    hosts: tuple[str, ...], launcher: str | None, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    monkeypatch.delenv("SHARDTUNE_WORKER_LAUNCHER", raising=False)
    if launcher is not None:
        monkeypatch.setenv("SHARDTUNE_WORKER_LAUNCHER", launcher)
    study, _ = undecided(None)
    cluster = study.cluster.model_copy(update={"nodes": 2})
    study = study.model_copy(update={"state": StudyState.RUNNING, "cluster": cluster})

    class Client:
        def studies(self) -> list[Study]:
            return [study]

    resumed = options(study=None, resume=True, hosts=hosts)
    if error is None:
        assert continuation.find(Client(), resumed) is study  # type: ignore[arg-type]
        return
    with pytest.raises(InputError, match=error):
        continuation.find(Client(), resumed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "launcher", "worker"),
    [
        ((), None, ()),
        ((), "local", ()),
        ((), "slurm", ("--nodes", "2")),
        (("--launcher", "local"), "slurm", ("--launcher", "local")),
        (("--launcher", "slurm"), None, ("--launcher", "slurm", "--nodes", "2")),
        (("--launcher", "slurm", "--nodes", "4"), None, ("--launcher", "slurm", "--nodes", "4")),
    ],
)
def test_a_worker_over_hosts_gets_the_studys_number_of_nodes(
    hosts: tuple[str, ...], launcher: str | None, worker: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDTUNE_WORKER_LAUNCHER", raising=False)
    if launcher is not None:
        monkeypatch.setenv("SHARDTUNE_WORKER_LAUNCHER", launcher)
    cluster = Cluster(device="cpu", nodes=2, gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    assert job.host_options(cluster, hosts) == worker

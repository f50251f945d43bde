"""`python -m benchmarks.hosts --launcher slurm|ray --hosts 2 --ranks 2 --inter-mbit 200`: does a study find what fits the network?

Exit code 1 where candidates differ (`spread` of 1.5 and half-widths of 5 % at most) and the study ends with another than the
exhaustive best, or one within its noise.
"""

import argparse
import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from benchmarks.hosts.jobs import JOBS
from benchmarks.hosts.measured import PLAN, Candidate, exhaust, found_by
from shardtune.api_schemas.machines.engines import EngineName
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudySpec
from tests.lab.laboratory import Laboratory, for_this_process
from tests.lab.service import LabService
from tests.lab.session import GangSession
from tests.lab.worker import LabWorker

_STUDY_S = 1200.0


def main() -> int:
    """Measure; the exit code."""
    options = _options()
    laboratory = for_this_process(options.hosts, options.ranks, options.inter_mbit, options.launcher)
    with tempfile.TemporaryDirectory() as folder, laboratory:
        candidates = _exhausted(laboratory, Path(folder), options)
        study_best, measured = _studied(laboratory, Path(folder), options)
    answer = _answer(options, candidates, found_by(study_best, candidates))
    answer["inter_mbit"]["measured"] = measured and round(measured * 8000)
    print(json.dumps(answer) if options.json else json.dumps(answer, indent=1))
    return 0 if _is_well(answer) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("--launcher", choices=get_args(EngineName), required=True)
    parser.add_argument("--job", choices=tuple(JOBS), default="meshes", help="what is searched (default: meshes)")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--inter-mbit", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _spec(options: argparse.Namespace, cluster: dict[str, Any]) -> dict[str, Any]:
    job = JOBS[options.job](options.hosts, options.ranks)
    job["budget"] |= {"max_pairs": 7, "resume_check": False, "repeat_disturbed": 0}
    return job | {"cluster": cluster}


def _exhausted(laboratory: Laboratory, folder: Path, options: argparse.Namespace) -> list[Candidate]:
    with closing(GangSession(laboratory, folder, options.ranks)) as session:
        cluster = session.ready()["cluster"]
        spec = StudySpec.model_validate(_spec(options, cluster))
        return exhaust(session, spec, Cluster.model_validate(cluster))


def _studied(laboratory: Laboratory, folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], float | None]:
    """The configuration that a study of the same space ends with, and the bandwidth that the worker offers, in GB/s."""
    with LabService(laboratory, folder, MEASURE=PLAN.model_dump_json()) as service:
        worker = LabWorker(laboratory, service)
        worker.measure_hardware()
        worker.start()
        (first,) = service.await_true(lambda: service.get("/v1/workers")["workers"], _STUDY_S, "the worker registers")
        study = service.create(_spec(options, first["inventory"]["cluster"]))
        service.await_true(
            lambda: service.get(f"/v1/studies/{study}")["state"] != "running", _STUDY_S, "the study ends"
        )
        stored = service.get(f"/v1/studies/{study}")
        assert stored["state"] == "complete", stored
        worker.end()
    return stored["result"]["best"]["config"], first["inventory"]["fingerprint"]["inter_node_gb_per_s"]


def _answer(options: argparse.Namespace, candidates: list[Candidate], study_best: Candidate) -> dict[str, Any]:
    best = min(candidates, key=lambda candidate: candidate.step_time_s)
    slowest = max(candidate.step_time_s for candidate in candidates)
    within = study_best.step_time_s - study_best.half_width_s <= best.step_time_s + best.half_width_s
    return {
        "launcher": options.launcher,
        "job": options.job,
        "inter_mbit": {"set": options.inter_mbit},
        "configs": [
            candidate.as_json(best.losses[0])
            for candidate in sorted(candidates, key=lambda candidate: candidate.step_time_s)
        ],
        "spread": round(slowest / best.step_time_s, 2),
        "exhaustive_best": best.config.describe(),
        "study_best": study_best.config.describe(),
        "ratio_to_best": round(study_best.step_time_s / best.step_time_s, 3),
        "within_noise": within,
        "half_width": round(max(candidate.half_width_s / candidate.step_time_s for candidate in candidates), 3),
    }


def _is_well(answer: dict[str, Any]) -> bool:
    decides = answer["spread"] >= 1.5 and answer["half_width"] <= 0.05
    return bool(answer["within_noise"]) or not decides


if __name__ == "__main__":
    sys.exit(main())

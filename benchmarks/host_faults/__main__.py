"""`python -m benchmarks.host_faults --launcher slurm|ray`: each fault in mid-trial of a study of its own, measured to the study's end.

`ranks_gone_s`: until no rank lives on any host of those that did. `reported_s`: until the service knows the attempt's end.
`left`: ranks alive at that moment. Exit code 1 where ranks outlive 10 s or the report, or a study does not finish.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.host_faults.faults import COMMON, ENGINE, HostFault, Scene, ranks_on
from tests.lab.laboratory import Laboratory, for_this_process
from tests.lab.processes import is_dead
from tests.lab.service import LabService
from tests.lab.worker import LabWorker
from tests.support.processes.stack import TINY

MOST_S = 10.0
_STUDY_S = 420.0
_MEASURE = {"parity_steps": 2, "max_warmup_steps": 1, "window_steps": 5, "min_windows": 3, "max_windows": 2000}
"""A trial is to train for a while, so that there is a middle to be hurt in."""
_TRAINS_S = {"min_measure_s": 8, "max_measure_s": 10}


def main() -> int:
    """Measure; the exit code."""
    options = _options()
    faults = COMMON | ENGINE[options.launcher]
    expected = options.fault or list(faults)
    figures = []
    with tempfile.TemporaryDirectory() as folder, _laboratory(options.launcher) as laboratory:
        settings = {"MEASURE": json.dumps(_MEASURE | _TRAINS_S), "WORKER_LIVE_S": "600"}
        with LabService(laboratory, Path(folder), **settings) as service:
            scene = Scene(laboratory, service, LabWorker(laboratory, service))
            scene.worker.start()
            for name in expected:
                figures.append({"fault": name, **_measured(scene, faults[name])})
                print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
            scene.worker.end()
    print(json.dumps({"launcher": options.launcher, "faults": figures}) if options.json else _table(figures))
    return 0 if all(_is_well(item, faults[item["fault"]]) for item in figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_faults", description=__doc__)
    parser.add_argument("--launcher", choices=sorted(ENGINE), required=True)
    parser.add_argument("--fault", action="append", help="only this one (repeatable)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _laboratory(engine: str) -> Laboratory:
    return for_this_process(hosts=2, ranks=1, inter_mbit=200, engine=engine)


def _measured(scene: Scene, fault: HostFault) -> dict[str, Any]:
    study = scene.service.create(_spec(scene))
    try:
        run = _await(scene, lambda: _training(scene, study), _STUDY_S, "a trial trains")
        ranks = {pid for host in scene.laboratory.nodes for pid in ranks_on(host)}
        watch = _watch(scene, fault, study, run, ranks)
        state = _await(scene, lambda: _ended(scene, study), _STUDY_S, "the study ends")
    except TimeoutError as error:
        return {
            "end": None,
            "left": None,
            "run_finished": False,
            "trouble": str(error),
            "log": scene.worker.log()[-1500:],
        }
    runs = [completed for completed in scene.service.runs(study) if completed["run_id"] == run["run_id"]]
    complete = [end for end in _ends(runs[0]) if end == "complete"]
    return {**watch, "attempts": _ends(runs[0]), "run_finished": state == "complete" and len(complete) == 1}


def _spec(scene: Scene) -> dict[str, Any]:
    """Figures of one trial over all hosts."""
    return {
        "model": TINY,
        "workload": {"sequence_length": 32, "global_batch": 8, "precision": "fp32"},
        "cluster": _await(scene, lambda: _offered(scene), _STUDY_S, "the worker registers"),
        "budget": {"max_trials": 1, "max_pairs": 7, "resume_check": False, "repeat_disturbed": 0},
        "space": {"backends": ["ddp"], "knobs": {"micro_batch": [1]}},
    }


def _offered(scene: Scene) -> dict[str, Any] | None:
    workers = scene.service.get("/v1/workers")
    rows = workers if isinstance(workers, list) else workers["workers"]
    return rows[0]["inventory"]["cluster"] if rows else None


def _await(scene: Scene, condition: Any, seconds: float, condition_name: str) -> Any:
    """Wait as `await_true` does, with a supervisor at work."""

    def looked() -> Any:
        scene.worker.tend()
        return condition()

    return scene.service.await_true(looked, seconds, condition_name)


def _training(scene: Scene, study: str) -> dict[str, Any] | None:
    for run in scene.service.runs(study):
        progress = run["progress"] or {}
        if run["state"] == "running" and progress.get("phase") == "measuring":
            return run
    return None


def _ended(scene: Scene, study: str) -> str | None:
    state = scene.service.get(f"/v1/studies/{study}")["state"]
    return None if state == "running" else str(state)


def _ends(run: dict[str, Any]) -> list[str | None]:
    return [attempt["end"] for attempt in run["attempts"]]


def _watch(scene: Scene, fault: HostFault, study: str, run: dict[str, Any], ranks: set[int]) -> dict[str, Any]:
    """Watch from the fault until the attempt's end is known."""
    fault.hurt(scene)
    began_s, undone = time.monotonic(), False
    gone_s = reported_s = None
    end: str | None = None
    while reported_s is None or gone_s is None or not undone:
        now_s = time.monotonic() - began_s
        if now_s > _STUDY_S:
            raise TimeoutError("the end of the attempt was not reported")
        if gone_s is None and all(map(is_dead, ranks)):
            gone_s = now_s
        if not undone and now_s >= fault.lasts_s:
            fault.undo(scene)
            undone = True
        if reported_s is None and (end := _end_of(scene, study, run)) is not None:
            reported_s, total = now_s, sum(not is_dead(pid) for pid in ranks)
        time.sleep(0.05)
    # Ranks of a run that was not lost end when they are done.
    gone = None if end == "complete" else round(gone_s, 1)
    return {"ranks_gone_s": gone, "reported_s": round(reported_s, 1), "end": end, "left": total}


def _end_of(scene: Scene, study: str, run: dict[str, Any]) -> str | None:
    """End of the hurt attempt; None while it is unknown or the service cannot be reached."""
    try:
        now = next(completed for completed in scene.service.runs(study) if completed["run_id"] == run["run_id"])
    except httpx.HTTPError:
        return None
    ends = _ends(now)
    return ends[len(run["attempts"]) - 1]


def _is_well(row: dict[str, Any], fault: HostFault) -> bool:
    if not row["run_finished"] or row["left"]:
        return False
    gone_s = row["ranks_gone_s"]
    return gone_s is None or (not fault.costs_nothing and float(gone_s) <= MOST_S)


def _table(results: list[dict[str, Any]]) -> str:
    keys = ("fault", "ranks_gone_s", "reported_s", "end", "left", "run_finished")
    return "\n".join(
        "  ".join(f"{item.get(key)!s:>20}" for key in keys) for item in (dict(zip(keys, keys, strict=True)), *results)
    )


if __name__ == "__main__":
    sys.exit(main())

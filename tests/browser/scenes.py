"""Studies and faults on the service while screenshots.py takes its pictures: real studies by real ranks, a rank that is
killed, a library that changes (a version the worker was told to report first), and the retune that follows.
"""

import contextlib
import time
from typing import Any

import psutil

from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from tests.support.processes.stack import TINY, Crew, Stack, study, until

# DeepSpeed builds an operator for offloading at its first use on a machine, which takes minutes.
QUICK = {"space": {"knobs": {"offload_optimizer": "none", "offload_param": "none"}}}
WIDE = TINY | {"hidden_size": 256, "intermediate_size": 512}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 512,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
}
SETTINGS = {
    "webhook_allow_private": True,
    "fingerprint_check_s": 1,
    "fingerprint_debounce_s": 3,
    "retune_every_s": 1,
    # Pictures need no precise figures, and a hundred runs are waited for.
    "measure": MeasurePlan(max_measure_s=1, min_measure_s=0.2, max_windows=4).model_dump_json(),
}


class Story:
    """The service, and the studies by what is told of them."""

    def __init__(self, stack: Stack, hook: str) -> None:
        self._stack = stack
        stack.start_service(**SETTINGS)
        self.address = str(stack.http.base_url).rstrip("/")
        for url, events in ((hook, []), ("http://127.0.0.1:9/hook", ["study.complete", "study.failed"])):
            self._post("/v1/webhooks", {"url": url, "events": events})
        self._studies: dict[str, str] = {}

    def search(self) -> None:
        """Three studies: one answered, one with little memory and a rank killed twice, and one that nothing fits."""
        agent = self._stack.start_worker(options=["--fingerprint-override", "transformers=5.0.0"])
        # Work is given out to the oldest study first: what the ranks are killed in must not wait for the others.
        self._study("tight", "wide-llama", WIDE, cluster=_cluster(0.03), budget=8, seed=1)
        self._study("answered", "tiny-llama", TINY, budget=12)
        self._study("impossible", "wide-llama", WIDE, cluster=_cluster(0.001))
        self._lose_a_rank_twice(agent, self._studies["tight"])
        self._ended("answered", "tight", "impossible")
        agent.terminate()
        agent.wait(timeout=60)

    def change_the_machine(self) -> None:
        """The worker comes back with other software: one case is measured again; others are skipped, asked for by hand, or wait."""
        policy = {"requires_approval": True, "retuning": {"on_fingerprint": False}}
        self._stack.http.put("/v1/projects/default", json=policy).raise_for_status()
        self._schedule("upgrades", trigger="fingerprint", targets={"model": "tiny-llama"}, planned_gpu_hours=2000)
        self._stack.start_worker()
        retune = until(lambda: self._list("/v1/retunes"), 60, "a retune is asked for")[0]["retune_id"]
        self._study("proposed", "tiny-gpt2", GPT2, budget=5)
        self._ended("proposed")
        until(lambda: self._get(f"/v1/retunes/{retune}")["state"] == "ended", 200, "the retune ends")
        cheap = {"planned_gpu_hours": 0.001, "likely_gain": 0.01, "targets": {"model": "wide-llama"}}
        self._post(f"/v1/schedules/{self._schedule('short-runs', trigger='manual', **cheap)}:run")
        until(lambda: any(r["outcome"] == "skipped" for r in self._list("/v1/retunes")), 30, "one is skipped")
        weekly = {"trigger": "cron", "cron": "0 3 * * 0", "timezone": "Europe/Berlin", "windows": ["03:00-03:30"]}
        self._post(f"/v1/schedules/{self._schedule('weekly', planned_gpu_hours=5000, likely_gain=0.03, **weekly)}:run")
        drift = self._schedule("slower-than-it-was", trigger="drift", max_gpu_seconds=600)
        self._post(f"/v1/schedules/{drift}:pause")
        time.sleep(2)

    def while_running(self) -> dict[str, Any]:
        """Pages that change by themselves, with a study that has some trials; the pages by name."""
        self._study("running", "tiny-llama", TINY, budget=40, seed=3)
        running = self._studies["running"]
        until(lambda: len(self._stack.trials(running)) > 6, 120, "it has trials")
        newest = max(trial["number"] for trial in self._stack.trials(running))
        return {
            "study-running": f"/studies/{running}",
            "trial-running": f"/studies/{running}/trials/{newest}",
            "best": "/",
            "studies": "/studies",
            "workers": "/workers",
        }

    def quiet_down(self) -> None:
        """The running study is cancelled, and another paused."""
        self._post(f"/v1/studies/{self._studies['running']}:cancel")
        self._study("paused", "tiny-gpt2", GPT2, budget=30, seed=4)
        self._post(f"/v1/studies/{self._studies['paused']}:pause")

    def pages(self) -> dict[str, Any]:
        """The other pages by name."""
        at = {name: f"/studies/{study_id}" for name, study_id in self._studies.items()}
        answered, tight = self._studies["answered"], self._studies["tight"]
        best = self._stack.study(answered)["result"]["best"]["trial_number"]
        hook, deaf = (h["webhook_id"] for h in sorted(self._list("/v1/webhooks"), key=lambda h: len(h["events"])))
        self._post(f"/v1/webhooks/{hook}:test")
        self._post(f"/v1/webhooks/{deaf}:disable")
        # The machine that measured the answered study is gone.
        renewed = self._studies["proposed"]
        reported = f"{renewed}/trials/{self._stack.study(renewed)['result']['best']['trial_number']}"
        self._told_why(f"/v1/studies/{reported}")
        challenge = next(r["challenge_study_id"] for r in self._list("/v1/retunes") if r["challenge_study_id"])
        actual = {f"study-{name}": path for name, path in at.items() if name != "running"}
        ends = {t["state"]: t["number"] for t in self._stack.trials(tight)}
        actual |= {f"trial-{state}": f"{at['tight']}/trials/{n}" for state, n in ends.items() if state != "complete"}
        return actual | {
            "study-cancelled": at["running"],
            "study-challenge": f"/studies/{challenge}",
            "study-filtered": f"{at['tight']}?reason=rank_lost",
            "trial": f"{at['answered']}/trials/{best}",
            "why": f"/studies/{reported}/why",
            "export": f"{at['answered']}/export",
            "compare-trials": f"/compare?pick={answered}:0&pick={answered}:{best or 1}",
            "compare-studies": f"/compare?pick={answered}&pick={tight}&pick={self._studies['proposed']}",
            "schedules": "/schedules",
            "costs": "/costs",
            "webhook": f"/settings/webhooks/{hook}",
            "webhook-disabled": f"/settings/webhooks/{deaf}",
        }

    def _lose_a_rank_twice(self, agent: psutil.Process, study_id: str) -> None:
        """A trial loses a rank in both of its attempts, so that it fails by no fault of its own."""
        hit: set[tuple[str, int]] = set()

        def has_failed() -> bool:
            trials = self._stack.trials(study_id)
            for trial in (t for t in trials if t["number"] > 1 and t["state"] == "running"):
                run = trial["runs"][0]
                attempt = (run["run_id"], len(run["attempts"]))
                if (run["progress"] or {}).get("phase") == "measuring" and attempt not in hit:
                    # On a quick machine the ranks may have ended since they reported.
                    with contextlib.suppress(IndexError, psutil.NoSuchProcess):
                        Crew(agent).rank.kill()
                        hit.add(attempt)
            return any(t["state"] == "failed" for t in trials) or self._stack.study(study_id)["state"] != "running"

        until(has_failed, 240, "a trial fails")

    def _told_why(self, trial: str) -> None:
        """The trial once more, under the profiler."""
        self._post(f"{trial}:diagnose")
        until(lambda: self._get(f"{trial}/diagnosis")["diagnosis"], 120, "the profile is told")

    def _study(self, name: str, model: str, config: dict[str, Any], budget: int = 3, **changes: Any) -> None:
        """`budget`: trials. The machine is shared with the browser: nothing is repeated for that, which would take minutes."""
        limits = {"max_trials": budget, "max_pairs": 7, "repeat_disturbed": 0}
        spec = study(model={"name": model, "config": config}, budget=limits, **QUICK, **changes)
        self._studies[name] = self._stack.create(spec)

    def _ended(self, *names: str) -> None:
        for name in names:
            until(lambda item=self._studies[name]: self._stack.study(item)["state"] != "running", 400, f"{name} ends")

    def _schedule(self, name: str, **spec: Any) -> str:
        return str(self._post("/v1/schedules", {"name": name, **spec})["schedule_id"])

    def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._stack.http.post(path, json=body)
        assert answer.is_success, (path, answer.text)
        return answer.json() if answer.content else None

    def _get(self, path: str) -> Any:
        return self._stack.http.get(path).raise_for_status().json()

    def _list(self, path: str) -> list[dict[str, Any]]:
        response = self._get(path)
        return response if isinstance(response, list) else next(iter(response.values()))


def _cluster(memory_gib: float) -> dict[str, Any]:
    return {"device": "cpu", "gpus_per_node": 2, "memory_gib": memory_gib, "host_memory_gib": 1}

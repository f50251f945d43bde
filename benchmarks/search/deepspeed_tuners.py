"""DeepSpeed's own tuner classes, imported from the installed package, choosing among a table's configurations.

Its autotuner writes experiments to disk and starts `deepspeed` for each; here a stand-in for its resource manager hands the
classes what was measured. What they choose next, and from what, is theirs.
"""

import importlib
import json
import logging
import random
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.measured import MeasuredTable
from benchmarks.search.replay import View
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue

TUNERS: dict[str, tuple[str, ...]] = {"grid": (), "random": (), "model_based": ("xgboost",)}
"""DeepSpeed's tuners by our name, with the packages each needs besides DeepSpeed."""
_CLASSES = {"grid": "GridSearchTuner", "random": "RandomTuner", "model_based": "ModelBasedTuner"}
_METRIC = "throughput"


class ResourceManager:
    """Interface of DeepSpeed's autotuner that its tuners use."""

    def __init__(self) -> None:
        self.finished_experiments: dict[int, tuple[dict[str, Any], str | None]] = {}


class DeepSpeedAsk:
    """One tuner on one table."""

    def __init__(self, name: str, table: MeasuredTable, seed: int) -> None:
        # DeepSpeed's log goes to what was standard output when it was imported, where the figures belong.
        with redirect_stdout(sys.stderr):
            tuners = importlib.import_module("deepspeed.autotuning.tuner")
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        self._table, self._name = table, name
        self._configs = list(table.space.measured)
        self._manager, self._folder = ResourceManager(), tempfile.TemporaryDirectory()
        self._asked: dict[int, int] = {}
        self._told = 0
        # The classes draw from the modules' own generators.
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        experiments = [self._experiment(number) for number in range(len(self._configs))]
        more: tuple[dict[str, Any], ...] = ({},) if name == "model_based" else ()
        self._tuner = self._drawn(lambda: getattr(tuners, _CLASSES[name])(experiments, self._manager, _METRIC, *more))

    def __call__(self, view: View) -> TrialConfig | None:
        """The tuner's next configuration that the memory gate lets pass."""
        self._tell(view)
        while self._tuner.has_next():
            batch = self._drawn(self._next_batch)
            if not batch:
                return None
            number = int(batch[0]["name"])
            if view.gate(self._configs[number]) is None:
                self._asked[len(view.history)] = number
                return self._configs[number]
        return None

    def _next_batch(self) -> list[dict[str, Any]]:
        try:
            batch: list[dict[str, Any]] = self._tuner.next_batch(1)
        except UnboundLocalError:
            # 0.19.8's model-based tuner breaks where its list is used up; what it means is one it has not visited.
            remaining = [index for index in range(len(self._configs)) if index not in self._tuner.visited]
            chosen = random.choice(remaining)
            self._tuner.visited.add(chosen)
            return [self._tuner.all_exps[chosen]]
        return batch

    def _tell(self, view: View) -> None:
        if self._name != "model_based" or len(view.history) == self._told:
            return
        self._manager.finished_experiments = {}
        for trial in view.history[self._told :]:
            number = self._asked[trial.number]
            is_measured = trial.measurement is not None and trial.failure is None
            speed = trial.measurement.tokens_per_s_per_gpu if is_measured and trial.measurement else 0.0
            self._path(number).write_text(json.dumps({_METRIC: speed}))
            error = None if is_measured else "failed"
            self._manager.finished_experiments[trial.number] = (self._experiment(number), error)
        self._told = len(view.history)
        self._drawn(self._tuner.update)

    def _experiment(self, number: int) -> dict[str, Any]:
        """The tuner's features are all numbers in here; every configuration must have the same ones."""
        knobs = self._knobs(self._table.space.flatten(self._configs[number]))
        return {
            "name": str(number),
            "result_dir": self._folder.name,
            "ds_config": {**knobs, "autotuning": {"metric_path": str(self._path(number))}},
        }

    def _knobs(self, own: dict[str, KnobValue]) -> dict[str, float]:
        return {knob: float(values[str(own[knob])]) if knob in own else -1.0 for knob, values in self._columns.items()}

    @property
    def _columns(self) -> dict[str, dict[str, float]]:
        if not hasattr(self, "_made"):
            results: dict[str, dict[str, float]] = {}
            for config in self._configs:
                for knob, value in self._table.space.flatten(config).items():
                    column = results.setdefault(knob, {})
                    is_word = isinstance(value, bool | str)
                    column.setdefault(str(value), float(len(column)) if is_word else float(value))
            self._made = results
        return self._made

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number}.json"

    def _drawn(self, work: Any) -> Any:
        """Call with generators of this search's own."""
        outer = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            return work()
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(outer[0])
            np.random.set_state(outer[1])

"""Configurations of one backend, drawn at random, and what else each of their knobs could have been."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.legal_values import COMMON, Flat
from shardtune.tuner.search.space.limits import NoLimits
from shardtune.tuner.search.space.questions import Question
from tests.support.long_run import IS_LONG
from tests.support.values.tuner_inputs import cpu, gpus, llama

CLUSTERS = (gpus(2, 4).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"}), cpu(4))
MIXTURE = llama("llama-tiny").model_copy(update={"experts": 8, "expert_width": 8, "expert_note": None})
"""A model with experts, so that expert parallelism can divide them."""
DRAWS, FEWER_DRAWS = 48, 24
"""Number of configurations drawn for each cluster. ZeRO has knobs that few configurations show."""

IN_FLOAT8 = 6
"""Number of configurations of FSDP2 drawn for each cluster with float8, which one of its knobs needs."""


@dataclass(frozen=True)
class Drawn:
    """A configuration, where it was drawn, and what else each of its knobs could have been."""

    workload: Workload
    cluster: Cluster
    config: TrialConfig
    table: Flat
    others: dict[str, TrialConfig]
    """Copies of the configuration by knob, with another value of that knob and its consequences."""


def drawn(kind: str, backend: SearchedBackend[Any], varied: str | None, draws: int | None) -> Iterator[Drawn]:
    """Draw configurations from a fixed seed. `varied`: the only knob whose other values are drawn. `draws`: number of
    configurations for each cluster."""
    rng = random.Random(3)
    for cluster in CLUSTERS:
        for number in range(draws or (DRAWS if IS_LONG or kind == "zero" else FEWER_DRAWS)):
            precision = PRECISIONS["fp32" if number % 2 else "bf16-mixed"]
            workload = Workload(sequence_length=64, global_batch=8 * cluster.world_size, precision=precision)
            yield _Draw(kind, backend, Domains(workload, cluster, MIXTURE), rng).draw_one(varied)
    # Last, so that the configurations above stay as they are.
    for cluster in CLUSTERS if kind == "fsdp2" else ():
        for _ in range(IN_FLOAT8):
            workload = Workload(
                sequence_length=64,
                global_batch=8 * cluster.world_size,
                precision=PRECISIONS["bf16-mixed"],
                float8="tensorwise",
            )
            yield _Draw(kind, backend, Domains(workload, cluster, MIXTURE), rng).draw_one(varied)


class _Draw:
    """One configuration of one study."""

    def __init__(self, kind: str, backend: SearchedBackend[Any], domains: Domains, rng: random.Random) -> None:
        self._kind, self._backend, self._domains, self._rng = kind, backend, domains, rng

    def draw_one(self, varied: str | None) -> Drawn:
        questions: dict[str, Question] = {}

        def choose(question: Question) -> Any:
            questions[question.knob] = question
            return self._rng.choice(question.values)

        table, others = self._run(choose), {}
        for knob, question in questions.items():
            different = [value for value in question.values if (value, type(value)) != (table[knob], type(table[knob]))]
            if different and knob == (varied or knob):
                others[knob] = self._other(table, knob, self._rng.choice(different))
        return Drawn(self._domains.workload, self._domains.cluster, self._config(table), table, others)

    def _other(self, table: Flat, knob: str, value: Any) -> TrialConfig:
        """Copy a configuration with one value changed, where that is legal."""
        try:
            alone = self._config({**table, knob: value})
            sample_groups.check(alone, self._domains.cluster, self._domains.workload)
            steps = alone.accumulation(self._domains.workload.global_batch, self._domains.cluster.world_size)
            alone.strategy.check_cluster(self._domains.cluster, self._domains.workload.precision, steps)
        except ValueError:
            return self._config(self._with(table, knob, value))
        return alone

    def _with(self, table: Flat, knob: str, value: Any) -> Flat:
        """Repeat the answers with one changed; where that leaves an answer without a place, the first candidate."""

        def answer(question: Question) -> Any:
            wanted_value = value if question.knob == knob else table.get(question.knob)
            equal = (value for value in question.values if value == wanted_value and type(value) is type(wanted_value))
            return next(equal, question.values[0])

        return self._run(answer)

    def _run(self, answer: Callable[[Question], Any]) -> Flat:
        limits = NoLimits(SpaceLimits(allow_compile=True), {**COMMON, **self._backend.knobs})
        limits.backends = (self._kind,)
        return DefineByRun(self._domains, limits, answer).run({self._kind: self._backend})

    def _config(self, table: Flat) -> TrialConfig:
        own = self._backend.to_fields({k: v for k, v in table.items() if k not in COMMON and k != "backend"})
        strategy = self._backend.config(**own)
        return TrialConfig(strategy=strategy, **{k: v for k, v in table.items() if k in COMMON})

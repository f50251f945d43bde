"""The trial that left a trace, where it is known: which of its knobs could be changed, and to what."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study, StudySpec
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.search_space import KnobValue, SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import Prediction
from shardtune.tuner.prediction import memory_gate, traced_shape
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.search import space
from shardtune.tuner.search.space import Space
from shardtune.tuner.search.space.flat import flatten, unflatten

Knobs = dict[str, KnobValue]


@dataclass(frozen=True)
class TracedTrial:
    """One configuration and the space that it is a point of."""

    config: TrialConfig
    workload: Workload
    cluster: Cluster
    space: Space
    fits: Callable[[TrialConfig], bool]
    """Whether the memory gate lets it run."""
    predict: Callable[[TrialConfig], Prediction] | None = None
    """Its memory and speed; None where they are not asked."""

    @property
    def accumulation(self) -> int:
        """Micro batches of a step."""
        return self._accumulation(self.config)

    def value(self, knob: str) -> KnobValue | None:
        """What it is now; None where the backend has no such knob."""
        return flatten(self.config).get(knob)

    def values(self, knob: str) -> tuple[KnobValue, ...]:
        """What the study would search there; empty where it has no choice."""
        try:
            answers = self.space.answers_of(self.config)
        except ValueError:
            return ()
        return next((question.values for question, _ in answers if question.knob == knob), ())

    def neighbours(self) -> Iterator[Knobs]:
        """Every change of one knob to a value that the study would search."""
        for knob, now in flatten(self.config).items():
            yield from ({knob: value} for value in self.values(knob) if value != now)

    def numbers(self, knob: str) -> tuple[int, ...]:
        """Those of `values` that are numbers, rising."""
        return tuple(sorted(one for one in self.values(knob) if isinstance(one, int) and not isinstance(one, bool)))

    def admits(self, knobs: Knobs) -> bool:
        """Whether the configuration with these knobs is legal, within the study's limits, another one, and may fit."""
        changed = self.with_knobs(knobs)
        allowed = None if changed is None else self.space.within_limits(changed)
        if changed is None or allowed is None:
            return False
        key = self.space.key(changed)
        return key == self.space.key(allowed) != self.space.key(self.config) and self.fits(changed)

    def with_knobs(self, knobs: Knobs) -> TrialConfig | None:
        """The configuration with other values; None where the backend or the cluster cannot have them."""
        try:
            changed = unflatten(flatten(self.config) | knobs)
            changed.strategy.check_cluster(self.cluster, self.workload.precision, self._accumulation(changed))
        except ValueError:
            return None
        return changed

    def only(self, knobs: Knobs) -> SpaceLimits | None:
        """Limits that leave the search the configuration with these knobs and nothing else; None where there are none."""
        changed = self.with_knobs(knobs)
        if changed is None:
            return None
        try:
            asked = {question.knob for question, _ in self.space.answers_of(changed)} - {"backend"}
            # Open knobs take any value, so also one between those that the search would try.
            pins = {knob: value for knob, value in flatten(changed).items() if knob in asked}
            limits = SpaceLimits(backends=(changed.strategy.kind,), knobs=pins, allow_compile=changed.compile or None)
            left = space.build(self.workload, self.cluster, self.space.domains.model_summary, limits)
        except ValueError:
            return None
        keys = {left.key(config) for config in islice(left.enumerate(), 2)}
        return limits if keys == {self.space.key(changed)} else None

    def _accumulation(self, config: TrialConfig) -> int:
        return config.accumulation(self.workload.global_batch, self.cluster.world_size)


def of_study(study: Study, config: TrialConfig, measured: MeasuredHardware | None = None) -> TracedTrial | None:
    """A trial of a study; None before its model was profiled, and for limits that leave no space."""
    return (
        None
        if study.model_summary is None
        else of_spec(study.spec, study.cluster, study.model_summary, config, measured)
    )


def of_spec(
    spec: StudySpec,
    cluster: Cluster,
    model_summary: ModelSummary,
    config: TrialConfig,
    measured: MeasuredHardware | None,
) -> TracedTrial | None:
    """The same of what a study is about, once its model was profiled; `measured`: what its machine reaches, where that is known."""
    try:
        built = space.build(spec.workload, cluster, model_summary, spec.space)
    except ValueError:
        return None
    shape, memory = traced_shape.of_study(spec.model, model_summary), MemoryCalibration()

    def fits(changed: TrialConfig) -> bool:
        return memory_gate.gate(changed, shape, spec.workload, cluster, spec.objective, memory) is None

    def predicted(changed: TrialConfig) -> Prediction:
        assert shape is not None
        return predict(shape, spec.workload, cluster, changed, limits=False, measured=measured)

    return TracedTrial(config, spec.workload, cluster, built, fits, predicted if shape is not None else None)

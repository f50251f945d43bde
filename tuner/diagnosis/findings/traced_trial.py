"""Trial that left a trace, where the trial is known: its knobs that can be changed, and the values they can take."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
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
    """Trial whose run was traced: its configuration, and the search space of its study."""

    config: TrialConfig
    workload: Workload
    cluster: Cluster
    space: Space
    fits: Callable[[TrialConfig], bool]
    """Function that returns whether a configuration passes the memory gate (is predicted to fit)."""
    predict: Callable[[TrialConfig], Prediction] | None = None
    """Function that predicts memory and speed of a configuration; None where the model's shape is unknown."""

    @property
    def accumulation(self) -> int:
        """Number of micro batches in a step of the traced trial."""
        return self._accumulation(self.config)

    def value(self, knob: str) -> KnobValue | None:
        """Present value of a knob in the traced trial; None where the backend has no such knob."""
        return flatten(self.config).get(knob)

    def values(self, knob: str) -> tuple[KnobValue, ...]:
        """Values of a knob that the study would search; empty where only one value is left."""
        try:
            answers = self.space.sampler_answers(self.config)
        except ValueError:
            return ()
        return next((question.values for question, _ in answers if question.knob == knob), ())

    def neighbours(self) -> Iterator[Knobs]:
        """Yield every change of one knob of the traced trial to a value that the study would search."""
        for knob, current in flatten(self.config).items():
            yield from ({knob: value} for value in self.values(knob) if value != current)

    def numbers(self, knob: str) -> tuple[int, ...]:
        """Numbers that the study would search for a knob, in rising order."""
        return tuple(sorted(size for size in self.values(knob) if isinstance(size, int) and not isinstance(size, bool)))

    def admits(self, knobs: Knobs) -> bool:
        """Whether the traced trial's configuration with the given knob values is legal, within the study's limits,
        different from the present one, and may fit in memory."""
        changed = self.with_knobs(knobs)
        allowed = None if changed is None else self.space.within_limits(changed)
        if changed is None or allowed is None:
            return False
        key = self.space.key(changed)
        return key == self.space.key(allowed) != self.space.key(self.config) and self.fits(changed)

    def with_knobs(self, knobs: Knobs) -> TrialConfig | None:
        """Traced trial's configuration with the given knobs changed; None where the backend or the cluster cannot have
        these values."""
        try:
            changed = unflatten(flatten(self.config) | knobs)
            changed.strategy.check_cluster(self.cluster, self.workload.precision, self._accumulation(changed))
        except ValueError:
            return None
        return changed

    def limits_to(self, knobs: Knobs) -> SpaceLimits | None:
        """Limits on the search that permit only the configuration with the given knob values; None where no limits
        single it out."""
        changed = self.with_knobs(knobs)
        if changed is None:
            return None
        try:
            drawn_knobs = {question.knob for question, _ in self.space.sampler_answers(changed)} - {"backend"}
            # Open knobs take any value, so also one between those that the search would try.
            pins = {knob: value for knob, value in flatten(changed).items() if knob in drawn_knobs}
            limits = SpaceLimits(backends=(changed.strategy.kind,), knobs=pins, allow_compile=changed.compile or None)
            pinned_space = space.build(self.workload, self.cluster, self.space.domains.model_summary, limits)
        except ValueError:
            return None
        # Two suffice to see that more than one is left, without enumerating the space.
        keys = {pinned_space.key(config) for config in islice(pinned_space.enumerate(), 2)}
        return limits if keys == {self.space.key(changed)} else None

    def _accumulation(self, config: TrialConfig) -> int:
        return config.accumulation(self.workload.global_batch, self.cluster.world_size)


def of_study(study: Study, config: TrialConfig, measured: MeasuredHardware | None = None) -> TracedTrial | None:
    """Build the traced trial of a study; None before the study's model was traced, and where the limits leave no search
    space."""
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
    """Traced trial from a study's specification, after its model was traced.

    `measured`: measured rates of the trial's machine, where known.
    """
    try:
        built = space.build(spec.workload, cluster, model_summary, spec.space)
    except ValueError:
        return None
    shape, memory = traced_shape.of_study(spec.model, model_summary, spec.workload.adapter), MemoryCalibration()

    def fits(changed: TrialConfig) -> bool:
        return memory_gate.reject_if_too_large(changed, shape, spec.workload, cluster, spec.objective, memory) is None

    def predict_config(changed: TrialConfig) -> Prediction:
        assert shape is not None
        return predict(shape, spec.workload, cluster, changed, limits=False, measured=measured)

    return TracedTrial(config, spec.workload, cluster, built, fits, predict_config if shape is not None else None)

"""Search space of one study: draw configurations from the space, enumerate it, and test membership."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, optimizer_support
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.strategies.recipe_support import deepcompile_support, fp16_support, lora_support
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.search_space import KnobValue, SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.search.space import choices
from shardtune.tuner.search.space.backends.registry import BACKENDS, KNOBS
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.depth_first import DepthFirst, Narrow
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.flat import flatten, unflatten
from shardtune.tuner.search.space.legal_values import Flat
from shardtune.tuner.search.space.limits import KnobLimits, NoLimits
from shardtune.tuner.search.space.questions import Answer, NoLegalValue, Question

Chooser = Callable[[str, tuple[KnobValue, ...]], KnobValue]
"""Function that takes a parameter's name and its candidate values, and returns one of the values."""

_MOST_KEYS = 10_000


class Choice(NamedTuple):
    """Value of a knob with several candidates in a configuration of the space."""

    question: Question
    value: KnobValue
    start: DefineByRun | None = None
    """State of the drawing (the choice of one knob value after another) before the step in which this value is chosen.
    If None, the configuration is drawn from the beginning."""


class Space:
    """Search space of a study: all configurations that differ in their effect. Every knob has a finite set of values."""

    def __init__(self, domains: Domains, limits: KnobLimits) -> None:
        self.domains, self.limits = domains, limits
        self._no_limits = NoLimits(SpaceLimits(allow_compile=True), KNOBS)
        self._canonical: dict[TrialConfig, TrialConfig] = {}
        self._keys: dict[TrialConfig, str] = {}

    def flatten(self, config: TrialConfig) -> Flat:
        """Values of a configuration's knobs by name. Override this method in a space with other knobs."""
        return flatten(config)

    def unflatten(self, table: Flat) -> TrialConfig:
        """Build the configuration with these knob values."""
        return unflatten(table)

    def sample(self, chooser: Chooser, start: DefineByRun | None = None) -> TrialConfig | None:
        """Draw a configuration by choosing one knob value after another, and return it. `chooser` is called only for
        knobs with several candidate values. The result is None if the user's limits leave a knob without a legal value.

        `start`: state in which earlier knobs already have their values (`Choice.start`); if None, all are chosen.
        """

        def answer(question: Question) -> KnobValue:
            return chooser(question.param, question.values)

        drawing = DefineByRun(self.domains, self.limits, answer) if start is None else start.resume(answer)
        drawing.asks_all = False
        try:
            config = self.unflatten(drawing.run(BACKENDS))
        except NoLegalValue:
            return None
        if drawing.is_canonical and len(self._canonical) < _MOST_KEYS:
            self._canonical.setdefault(config, config)
        return config

    def contains(self, config: TrialConfig) -> bool:
        """Whether the search could suggest exactly this configuration: it is in the space and within the user's
        limits."""
        table = self.flatten(config)

        def answer(question: Question) -> KnobValue:
            if choices.index_of(table.get(question.knob), question.values) is None:
                raise NoLegalValue(question.knob, question.values)
            return table[question.knob]

        try:
            return self.unflatten(self._walk(answer)) == config
        except NoLegalValue:
            return False

    def sampler_answers(self, config: TrialConfig, exact: bool = False) -> list[tuple[Question, KnobValue]]:
        """Return the parameters (knobs with their candidates) by which a sampler represents a configuration, each with
        its value. A size between two candidates is rounded to the nearer one.

        `exact`: whether to reject sizes between candidates instead of rounding them.

        Raises:
            ValueError: the configuration is not in the space: its backend, its mesh or the value of another knob is no
                candidate.
        """
        return [(choice.question, choice.value) for choice in self.choices_of(config, exact)]

    def choices_of(self, config: TrialConfig, exact: bool = False) -> list[Choice]:
        """Return the choices by which a configuration is drawn, each with the state of the drawing before it. From that
        state `sample` draws configurations that differ in this choice. `exact` and the errors are those of
        `sampler_answers`."""
        table, chosen = self.flatten(config), list[Choice]()

        def answer(question: Question) -> KnobValue:
            is_open = self.limits.is_open(question.knob)
            find_index = choices.nearest_index if is_open and not exact else choices.index_of
            index = find_index(table.get(question.knob), question.values)
            if index is None:
                raise NoLegalValue(question.knob, question.values)
            if len(question.values) > 1:
                chosen.append(Choice(question, question.values[index], drawing.start))
            return question.values[index]

        drawing = DefineByRun(self.domains, self.limits, answer)
        drawing.keeps_start = True
        try:
            drawing.run(BACKENDS)
        except NoLegalValue as end:
            raise ValueError(
                f"{end.knob} ({table.get(end.knob)!r}) is not in the space; it has {choices.describe_values(end.candidates)}"
            ) from None
        return chosen

    def canonical(self, config: TrialConfig) -> TrialConfig:
        """Canonical form of a configuration: every knob that has no effect in it is set to its default, so that
        configurations with equal effect become equal."""
        canonical = self._canonical.get(config)
        if canonical is None:
            canonical = self._walk_without_limits(config)
            # Every suggestion needs those of the whole history; rejected draws should not fill memory.
            if len(self._canonical) < _MOST_KEYS:
                self._canonical[config] = canonical
        return canonical

    def _walk_without_limits(self, config: TrialConfig) -> TrialConfig:
        table = self.flatten(config)
        free = DefineByRun(self.domains, self._no_limits, lambda question: table[question.knob])
        try:
            return self.unflatten(free.run(BACKENDS))
        except (ValueError, KeyError, NoLegalValue):
            # The configuration has a mesh that does not exist here; it is its own canonical form.
            return config

    def key(self, config: TrialConfig) -> str:
        """Content key (hash) of a configuration's canonical form, in which every knob without effect has its default;
        configurations with equal effect have equal keys."""
        return self.content_key(self.canonical(config))

    def content_key(self, config: TrialConfig) -> str:
        """Content key (hash) of a configuration as it is, not converted to its canonical form; cached."""
        key = self._keys.get(config)
        if key is None:
            key = config.content_key()
            if len(self._keys) < _MOST_KEYS:
                self._keys[config] = key
        return key

    def within_limits(self, config: TrialConfig) -> TrialConfig | None:
        """Configuration with limited knobs moved to the nearest value that the user allows; None where no such
        configuration exists."""
        table = self.flatten(config)

        def answer(question: Question) -> KnobValue:
            value = table.get(question.knob)
            limited = question.knob in self.limits or question.knob == "backend"
            # A mesh must fit the values that the limits have moved; other values may lie between the candidates.
            if (
                value is not None
                and not limited
                and not (question.knob in KNOBS and KNOBS[question.knob].places_states)
            ):
                return value
            index = choices.nearest_index(value, question.values)
            return question.values[0 if index is None else index]

        if config.backend not in self.limits.backends:
            return None
        try:
            return self.unflatten(table | self._walk(answer))
        except (NoLegalValue, ValueError):
            return None

    def enumerate(self, narrow: Narrow | None = None) -> Iterator[TrialConfig]:
        """Yield every configuration of the space once, in a fixed order; `narrow` selects which of a knob's candidates
        to enumerate."""
        configs: set[TrialConfig] = set()
        for table in self._walk_all(narrow):
            config, count = self.unflatten(table), len(configs)
            configs.add(config)
            # Two paths of the walk may end in one configuration.
            if len(configs) > count:
                yield config

    def size(self, at_most: int = 100_000) -> int:
        """Number of configurations in the space, counted no further than `at_most`."""
        count = 0
        for _ in self._walk_all(None):
            count += 1
            if count >= at_most:
                break
        return count

    def lightest(self) -> Iterator[TrialConfig]:
        """Configurations that use the least memory, one for each placement of model states; if none of them fits, no
        configuration of the space fits."""
        return self.enumerate(choices.lightest_values)

    def with_placement_of(self, skeleton: TrialConfig) -> Iterator[TrialConfig]:
        """Yield the configurations that place model states as `skeleton` does, one of the results of `lightest`."""
        table = self.flatten(skeleton)

        def narrow(question: Question) -> tuple[KnobValue, ...]:
            placed = (
                len(choices.lightest_values(question)) > 1
                and choices.index_of(table.get(question.knob), question.values) is not None
            )
            return (table[question.knob],) if placed else question.values

        return self.enumerate(narrow)

    def check_limits(self) -> None:
        """Reject limits that leave a knob without a value wherever the knob exists, such as a mesh that does not divide
        the ranks.

        Raises:
            ValueError: names the knob, the values that the user allowed, and the legal values.
        """
        dead: dict[str, NoLegalValue] = {}
        alive: set[str] = set()
        for table in self._walk_all(choices.branching_values, dead):
            alive |= table.keys()
        for knob, end in dead.items():
            if knob not in alive:
                raise ValueError(
                    f"space.knobs.{knob} ({self.limits.limit_text(knob)}) leaves nothing to search: "
                    f"the values here are {choices.describe_values(end.candidates)}; name one of these"
                    + (f" ({end.why_not})" if end.why_not else "")
                )
        if not alive:
            raise ValueError("space.knobs: the limits contradict each other on every backend; drop one of them")

    def _walk(self, answer: Answer) -> Flat:
        return DefineByRun(self.domains, self.limits, answer).run(BACKENDS)

    def _walk_all(self, narrow: Narrow | None, dead: dict[str, NoLegalValue] | None = None) -> Iterator[Flat]:
        """Yield the knob values of every configuration of the space, depth first."""
        walk = DepthFirst(DefineByRun(self.domains, self.limits, lambda question: question.values[0]), narrow)
        while walk.has_next:
            try:
                yield walk.draw_next(BACKENDS)
            except NoLegalValue as end:
                if dead is not None:
                    dead.setdefault(end.knob, end)


def build(
    workload: Workload,
    cluster: Cluster,
    model_summary: ModelSummary,
    limits: SpaceLimits,
    cores: int | None = None,
) -> Space:
    """Build the search space of a study. `cores`: number of CPU cores of a node, None where unknown.

    Raises:
        IndivisibleBatch: no micro batch divides the global batch.
        ValueError: an unknown knob, limits that leave no configuration, or no backend that can train with the workload's
            optimizer.
    """
    backends = optimizer_support.trainable_backends(limits.backends, workload.optimizer)
    backends = lora_support.trainable_backends(backends, workload.adapter)
    optimizer_support.check_limits(limits.knobs, workload.optimizer)
    fp16_support.check_limits(limits.knobs, workload.precision)
    deepcompile_support.check_limits(limits.knobs, workload)
    float8_gather.check_limits(limits.knobs, workload.float8)
    checked = KnobLimits(limits.model_copy(update={"backends": backends}), KNOBS)
    domains = Domains(workload, cluster, model_summary, cores=cores)
    space = Space(domains, checked)
    space.check_limits()
    return space

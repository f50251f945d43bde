"""The next configuration to try, as a pure function of the trials so far. The only module that imports optuna.

An in-memory Optuna study is rebuilt from the observations for every ask, so that nothing but our own table is
ever the truth (docs/decisions/0001). TPESampler only: GPSampler imports torch.
"""

import random
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import assert_never

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, create_trial

from shardtune.api_schemas.search_space import KnobValue
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials import Rejection, TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.search.dominance import probably_too_large, too_large
from shardtune.tuner.search.space import Chooser, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=ExperimentalWarning, message=".*group.*")

Gate = Callable[[TrialConfig], Rejection | None]

STARTUP_TRIALS = 6
"""Finished trials, the seeds among them, before TPE replaces random sampling."""
TPE_DRAWS = 8
RANDOM_DRAWS = 64
ENUMERABLE = 2_000
"""A space up to this size is enumerated to choose uniformly among what is left."""
MOST_REJECTIONS = 32
"""Reasons returned per ask, the closest to fitting; a study whose memory fits little would else store thousands."""
OF_ANOTHER_STUDY = "of_another_study"
"""Marks the trials that the sampler sees and this study did not run."""


@dataclass(frozen=True)
class Suggestion:
    """What to run next, and what the memory gate refused on the way."""

    config: TrialConfig | None
    """None: everything that may run has been tried."""
    origin: TrialOrigin | None
    rejections: tuple[Rejection, ...] = ()


@dataclass
class _Ask:
    """What is taken, and what this ask has refused."""

    space: Space
    gate: Gate
    taken: set[str]
    rejections: list[Rejection] = field(default_factory=list)
    seeds_refused: int = 0

    def accepts(self, config: TrialConfig | None) -> bool:
        """Whether the configuration is new and may fit; it is not considered again in this ask."""
        if config is None:
            return False
        key = self.space.key(config)
        if key in self.taken or config.content_key() in self.taken:
            return False
        self.taken.add(key)
        rejection = self.gate(config)
        if rejection is not None:
            self.rejections.append(rejection)
        return rejection is None

    def suggest(self, config: TrialConfig | None, origin: TrialOrigin | None) -> Suggestion:
        """The answer, with the reasons of refused seeds (a baseline among them) and the closest of the others."""
        seeds, others = self.rejections[: self.seeds_refused], self.rejections[self.seeds_refused :]
        others.sort(key=lambda rejection: rejection.needed_gib - rejection.available_gib)
        return Suggestion(config, origin if config is not None else None, (*seeds, *others[:MOST_REJECTIONS]))


def next_config(
    space: Space,
    seeds: Sequence[tuple[TrialConfig, TrialOrigin]],
    history: Sequence[Observation],
    rejected: Collection[str],
    gate: Gate,
    seed: int,
    warm: Sequence[Observation] = (),
) -> Suggestion:
    """Choose a configuration that is not in the history, is not rejected and passes the gate.

    Seeds come first, then TPE; what TPE repeats is redrawn, then chosen at random, then by enumeration.
    The same arguments give the same suggestion. `rejected` are content keys of earlier rejections. `warm` are trials
    of another study (tuner.search.warm_start), which guide TPE and are tried again where it wants them.
    """
    taken = {space.key(obs.config) for obs in history} | {obs.config_key for obs in history}
    ask = _Ask(space, gate, taken | set(rejected))
    for config, origin in seeds:
        if ask.accepts(config):
            return ask.suggest(config, origin)
        ask.seeds_refused = len(ask.rejections)
    rng = random.Random(f"{seed}:{len(history)}:{len(rejected)}")
    for candidate in _candidates(space, history, warm, gate, ask, rng):
        if ask.accepts(candidate):
            return ask.suggest(candidate, TrialOrigin.SAMPLER)
    return ask.suggest(None, None)


def next_given(
    given: Sequence[tuple[TrialConfig, TrialOrigin]],
    history: Sequence[Observation],
    rejected: Collection[str],
    gate: Gate,
) -> Suggestion:
    """The next of a list that has not been tried and passes the gate; nothing beyond the list is suggested."""
    taken = {obs.config_key for obs in history} | set(rejected)
    refused: list[Rejection] = []
    for config, origin in given:
        if config.content_key() in taken:
            continue
        rejection = gate(config)
        if rejection is None:
            return Suggestion(config, origin, tuple(refused))
        refused.append(rejection)
    return Suggestion(None, None, tuple(refused))


def _candidates(
    space: Space,
    history: Sequence[Observation],
    warm: Sequence[Observation],
    gate: Gate,
    ask: _Ask,
    rng: random.Random,
) -> Iterator[TrialConfig | None]:
    known = too_large(history, space)
    postponed: list[TrialConfig] = []
    for draw in chain(_tpe(space, history, warm, rng.getrandbits(31)), _random(space, rng)):
        if draw is not None and probably_too_large(draw, known):
            postponed.append(draw)
        else:
            yield draw
    yield from postponed
    if space.size(ENUMERABLE + 1) <= ENUMERABLE:
        everything = list(space.enumerate())
        rng.shuffle(everything)
        yield from everything
        return
    for skeleton in space.lightest():
        # What does not fit in its lightest form does not fit in any other, which prunes the enumeration.
        if gate(skeleton) is not None:
            ask.accepts(skeleton)
            continue
        yield from space.like(skeleton)


def _random(space: Space, rng: random.Random) -> Iterator[TrialConfig | None]:
    for _ in range(RANDOM_DRAWS):
        yield space.sample(lambda _, values: rng.choice(values))


def _tpe(
    space: Space, history: Sequence[Observation], warm: Sequence[Observation], seed: int
) -> Iterator[TrialConfig | None]:
    """Draws of one sampler. Those before stay in its study as running, which keeps it from repeating them.

    Trials of another study come first (TPE weighs what is older less) and are marked.
    """
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=STARTUP_TRIALS, multivariate=True, group=True, constant_liar=True, seed=seed
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for obs in warm:
        earlier = _told(space, obs)
        if earlier is not None:
            earlier.set_user_attr(OF_ANOTHER_STUDY, True)
            study.add_trial(earlier)
    study.add_trials([trial for obs in history if (trial := _told(space, obs)) is not None])
    for _ in range(TPE_DRAWS):
        yield space.sample(_chooser(study.ask()))


def _chooser(trial: optuna.Trial) -> Chooser:
    def choose(param: str, values: tuple[KnobValue, ...]) -> KnobValue:
        if _is_ordered(values):
            return values[trial.suggest_int(param, 0, len(values) - 1)]
        chosen = trial.suggest_categorical(param, values)
        assert chosen is not None
        return chosen

    return choose


def _told(space: Space, obs: Observation) -> FrozenTrial | None:
    """The observation as Optuna sees it; None where it has nothing to learn.

    An infeasible trial is PRUNED with a violated constraint: told as FAIL, TPE proposes the same again. So is one that
    crashed twice; any other failure says nothing about the configuration. Sizes outside the space are told as the nearest inside, but only
    of complete trials: that one value is too much does not condemn its neighbour.
    """
    if obs.state in (TrialState.FAILED, TrialState.CANCELLED) and not obs.is_no_choice:
        return None
    try:
        answers = space.answers_of(obs.config, exact=obs.is_no_choice)
    except ValueError:
        return None
    params: dict[str, KnobValue] = {}
    distributions: dict[str, BaseDistribution] = {}
    for question, value in answers:
        ordered = _is_ordered(question.values)
        params[question.param] = question.values.index(value) if ordered else value
        distributions[question.param] = (
            IntDistribution(0, len(question.values) - 1) if ordered else CategoricalDistribution(question.values)
        )
    match obs.state:
        case TrialState.COMPLETE if obs.measurement is not None:
            value = obs.measurement.tokens_per_s_per_gpu
            return create_trial(value=value, params=params, distributions=distributions, constraints={"feasible": 0.0})
        case TrialState.INFEASIBLE | TrialState.PRUNED | TrialState.FAILED:
            violated = {"feasible": 1.0 if obs.is_no_choice else 0.0}
            state = optuna.trial.TrialState.PRUNED
            return create_trial(state=state, params=params, distributions=distributions, constraints=violated)
        case TrialState.RUNNING | TrialState.WAITING:
            return create_trial(state=optuna.trial.TrialState.RUNNING, params=params, distributions=distributions)
        case TrialState.COMPLETE | TrialState.CANCELLED:
            # Nothing is known of the configuration.
            return None
        case _:
            assert_never(obs.state)


def _is_ordered(values: tuple[KnobValue, ...]) -> bool:
    """Numbers in rising order are sampled by position, so that neighbours teach about each other."""
    return len(values) > 2 and not any(isinstance(value, bool | str) for value in values)

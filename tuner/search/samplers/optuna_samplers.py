"""Samplers of Optuna, each a pure function of the trials so far. The only module that imports optuna."""

import random
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import assert_never

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, create_trial

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.search.samplers.draw import Draw, SearchView
from shardtune.tuner.search.space import Chooser, Space
from shardtune.tuner.search.space.questions import Question

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=ExperimentalWarning, message=".*group.*")

STARTUP_TRIALS = 6
"""Number of finished trials, seed trials included, before an Optuna sampler replaces random sampling."""
_DRAWS = 8
_RANDOM_DRAWS = 64
_MOST_ANSWERS = 1024
"""Maximum number of configurations whose Optuna parameters are cached."""
OF_ANOTHER_STUDY = "of_another_study"
"""Name of the Optuna trial attribute that marks trials of another study."""


def uniform(view: SearchView) -> Iterator[Draw | None]:
    """Propose configurations with every knob drawn uniformly at random."""
    rng = random.Random(view.seed)
    for _ in range(_RANDOM_DRAWS):
        config = view.space.sample(lambda _, values: rng.choice(values))
        yield None if config is None else Draw(config)


def tpe(view: SearchView) -> Iterator[Draw | None]:
    """Propose configurations drawn from Optuna's tree-structured Parzen estimator (TPE)."""
    sampler = TPESampler(
        n_startup_trials=STARTUP_TRIALS, multivariate=True, group=True, constant_liar=True, seed=view.seed
    )
    return _draw_from(view, sampler)


def gp(view: SearchView) -> Iterator[Draw | None]:
    """Propose configurations drawn from Optuna's Gaussian process (Matern 5/2 kernel, log expected improvement)."""
    return _draw_from(view, GPSampler(n_startup_trials=STARTUP_TRIALS, seed=view.seed, deterministic_objective=False))


def _draw_from(view: SearchView, sampler: BaseSampler) -> Iterator[Draw | None]:
    """Yield proposals of one Optuna sampler.

    Trials of another study come first and are marked: TPE gives older trials less weight.
    """
    # The study is rebuilt from the observations for every suggestion, so that our own table stays the only truth
    # (docs/decisions/0001). Earlier draws stay in it as running, which keeps the sampler from repeating them.
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for obs in view.warm:
        earlier = _as_optuna_trial(view.space, obs)
        if earlier is not None:
            earlier.set_user_attr(OF_ANOTHER_STUDY, True)
            study.add_trial(earlier)
    study.add_trials([trial for obs in view.history if (trial := _as_optuna_trial(view.space, obs)) is not None])
    for _ in range(_DRAWS):
        config = view.space.sample(_chooser(study.ask()))
        yield None if config is None else Draw(config)


def _chooser(trial: optuna.Trial) -> Chooser:
    def choose(param: str, values: tuple[KnobValue, ...]) -> KnobValue:
        if _is_ordered(values):
            return values[trial.suggest_int(param, 0, len(values) - 1)]
        chosen = trial.suggest_categorical(param, values)
        assert chosen is not None
        return chosen

    return choose


def _as_optuna_trial(space: Space, obs: Observation) -> FrozenTrial | None:
    """Convert a trial to an Optuna trial; None where the sampler can learn nothing from the trial.

    A size outside the space is replaced by the nearest size inside, but only for feasible trials: a trial that failed
    because its size is too large says nothing about the nearest size.
    """
    # Any failure but a repeated crash says nothing about the configuration.
    if obs.state in (TrialState.FAILED, TrialState.CANCELLED) and not obs.is_excluded:
        return None
    try:
        answers = _answers_of(space, obs.config, obs.is_excluded)
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
        case TrialState.COMPLETE | TrialState.PRUNED if obs.measurement is not None:
            value = obs.measurement.tokens_per_s_per_gpu
            return create_trial(value=value, params=params, distributions=distributions, constraints={"feasible": 0.0})
        case TrialState.INFEASIBLE | TrialState.PRUNED | TrialState.FAILED:
            # An infeasible trial is PRUNED with a violated constraint, and so is one that crashed twice: reported as
            # FAIL, TPE proposes the same configuration again.
            violated = {"feasible": 1.0 if obs.is_excluded else 0.0}
            state = optuna.trial.TrialState.PRUNED
            return create_trial(state=state, params=params, distributions=distributions, constraints=violated)
        case TrialState.RUNNING | TrialState.WAITING:
            return create_trial(state=optuna.trial.TrialState.RUNNING, params=params, distributions=distributions)
        case TrialState.COMPLETE | TrialState.CANCELLED:
            # A complete trial without a measurement, or a cancelled one, says nothing about its configuration.
            return None
        case _:
            assert_never(obs.state)


@lru_cache(_MOST_ANSWERS)
def _answers_of(space: Space, config: TrialConfig, exact: bool) -> list[tuple[Question, KnobValue]]:
    """Optuna parameters that represent a configuration; cached, because every suggestion needs the parameters of all
    trials."""
    return space.sampler_answers(config, exact)


def _is_ordered(values: tuple[KnobValue, ...]) -> bool:
    """Whether values are numbers in rising order, which Optuna samples by position so that neighbouring values inform
    each other."""
    return len(values) > 2 and not any(isinstance(value, bool | str) for value in values)

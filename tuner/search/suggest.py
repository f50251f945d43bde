"""Suggestion of the next configuration to try, computed for every sampler as a pure function of the trials so far."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialReason
from shardtune.tuner.history import Observation
from shardtune.tuner.search.dominance import oversized_configs, probably_too_large
from shardtune.tuner.search.samplers import optuna_samplers
from shardtune.tuner.search.samplers.draw import Draw, Sampler, SearchView
from shardtune.tuner.search.space import Space

MemoryGate = Callable[[TrialConfig], Rejection | None]

ENUMERABLE = 2_000
"""Maximum number of configurations of a search space that is enumerated in full, so that each untried configuration is
equally likely to be chosen."""
# A study whose memory fits little would else store thousands.
MAX_REJECTIONS = 32
"""Maximum number of the memory gate's rejections returned with a suggestion, those closest to fitting."""


@dataclass(frozen=True)
class Suggestion:
    """Configuration to run next, with the configurations that the memory gate rejected before it as predicted not to
    fit."""

    config: TrialConfig | None
    """Configuration to run next. If None, no untried configuration is left that the memory gate lets run."""
    origin: TrialOrigin | None
    rejections: tuple[Rejection, ...] = ()
    reason: TrialReason | None = None
    """Reason why the sampler chose the suggested configuration."""


@dataclass
class _Ask:
    """State while one suggestion is computed: configurations already tried or considered, and rejections so far."""

    space: Space
    gate: MemoryGate
    taken: set[str]
    rejections: list[Rejection] = field(default_factory=list)
    seeds_rejected: int = 0

    def accepts(self, config: TrialConfig | None) -> bool:
        """Whether a configuration is new and passes the memory gate (is not predicted to exceed memory). A
        configuration is considered only once for a suggestion."""
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
        """Build the suggestion that names this configuration and lists the memory gate's rejections: all rejections of
        seeds (such as a baseline), and, of the other configurations, those that are closest to fitting."""
        seeds, ordinary = self.rejections[: self.seeds_rejected], self.rejections[self.seeds_rejected :]
        ordinary.sort(key=lambda rejection: rejection.needed_gib - rejection.available_gib)
        return Suggestion(config, origin if config is not None else None, (*seeds, *ordinary[:MAX_REJECTIONS]))


def next_config(
    space: Space,
    seeds: Sequence[tuple[TrialConfig, TrialOrigin]],
    history: Sequence[Observation],
    rejected: Collection[str],
    gate: MemoryGate,
    seed: int,
    warm: Sequence[Observation] = (),
    sampler: Sampler = optuna_samplers.tpe,
) -> Suggestion:
    """Choose the next configuration to try: not in the history, not rejected, and passed by the memory gate (predicted
    to fit).

    Seeds (default configurations and the user's own) come first, then the sampler's proposals. Where all of these have
    been tried, a random configuration is chosen, and at last the space is enumerated. The same arguments give the same
    suggestion. `rejected` are content keys (hashes) of configurations that the memory gate rejected earlier. `warm` are
    trials of another study (tuner.search.warm_start), which guide the sampler and may be tried again.
    """
    taken_keys = {space.key(obs.config) for obs in history} | {obs.config_key for obs in history}
    ask = _Ask(space, gate, taken_keys | set(rejected))
    for config, origin in seeds:
        if ask.accepts(config):
            return ask.suggest(config, origin)
        ask.seeds_rejected = len(ask.rejections)
    rng = random.Random(f"{seed}:{len(history)}:{len(rejected)}")
    view = SearchView(space, history, warm, frozenset(ask.taken), rng.getrandbits(31))
    for draw in _draw_candidates(view, sampler, gate, ask, rng):
        if draw is not None and ask.accepts(draw.config):
            return replace(ask.suggest(draw.config, TrialOrigin.SAMPLER), reason=draw.reason)
    return ask.suggest(None, None)


def next_listed(
    listed: Sequence[tuple[TrialConfig, TrialOrigin]],
    history: Sequence[Observation],
    rejected_keys: Collection[str],
    gate: MemoryGate,
) -> Suggestion:
    """Suggest the first configuration of a user's list that has not been tried and passes the memory gate (is predicted
    to fit). If none is left, the suggestion's `config` is None."""
    taken_keys = {obs.config_key for obs in history} | set(rejected_keys)
    rejected: list[Rejection] = []
    for config, origin in listed:
        if config.content_key() in taken_keys:
            continue
        rejection = gate(config)
        if rejection is None:
            return Suggestion(config, origin, tuple(rejected))
        rejected.append(rejection)
    return Suggestion(None, None, tuple(rejected))


def _draw_candidates(
    view: SearchView, sampler: Sampler, gate: MemoryGate, ask: _Ask, rng: random.Random
) -> Iterator[Draw | None]:
    space = view.space
    oversized = oversized_configs(view.history, space)
    postponed: list[Draw] = []
    for draw in chain(sampler(view), optuna_samplers.uniform(replace(view, seed=rng.getrandbits(31)))):
        # A probable failure costs a whole trial, so it is tried only once nothing better is left.
        if draw is not None and probably_too_large(draw.config, oversized, space):
            postponed.append(draw)
        else:
            yield draw
    yield from postponed
    if space.size(ENUMERABLE + 1) <= ENUMERABLE:
        all_configs = list(space.enumerate())
        rng.shuffle(all_configs)
        yield from map(Draw, all_configs)
        return
    for skeleton in space.lightest():
        # A placement that does not fit in its lightest form does not fit in any other: this prunes the enumeration.
        if gate(skeleton) is not None:
            ask.accepts(skeleton)
            continue
        yield from map(Draw, space.with_placement_of(skeleton))

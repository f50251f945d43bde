"""Every place that must know each backend and each knob, and what a place that does not know one is told.

The checks take the registries as arguments: a test plants a backend or a knob by handing in registries with one more.
"""

import inspect
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.search_space import BACKENDS as LISTED
from shardtune.api_schemas.search_space import SpaceLimits
from shardtune.api_schemas.strategies import Strategy, TrialConfig
from shardtune.api_schemas.strategies.base import StrategySchema
from shardtune.api_schemas.workload import RECIPES, Workload, gradient_accumulation
from shardtune.service.wording import backend_words, knob_words
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan, training_arguments
from shardtune.tuner.export.backends.record import ExportedBackend
from shardtune.tuner.export.backends.registry import BACKENDS as EXPORTED
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.prediction.backends.record import PredictedBackend
from shardtune.tuner.prediction.backends.registry import BACKENDS as PREDICTED
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.backends.registry import BACKENDS as SEARCHED
from shardtune.tuner.search.space.define_by_run import DefineByRun, Question
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.knobs import COMMON, Flat
from shardtune.tuner.search.space.limits import KnobLimits
from shardtune.workers.rank.strategies.registry import TRAINERS
from tests.support.made_up_studies import contender_of, study_of
from tests.support.tuner_cases import cpu, gpus, llama, shape

ROOT = Path(__file__).parents[2]
RANK = "workers/rank/strategies/{}.py"
SPACE = "tuner/search/space/backends/{}.py"
PREDICTION = "tuner/prediction/backends/{}.py"
EXPORT = "tuner/export/backends/{}.py"
KNOB_WORDS = "service/wording/knob_words.py"
PAGE = "docs/search-space.md"
CLUSTERS = (gpus(2, 4).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"}), cpu(4))
DRAWS = 16


@dataclass(frozen=True)
class Registries:
    """All of them, as the product has them; see `PRODUCT`."""

    schemas: Mapping[str, type[StrategySchema]]
    listed: tuple[str, ...]
    searched: Mapping[str, SearchedBackend[Any]]
    predicted: Mapping[str, PredictedBackend[Any]]
    exported: Mapping[str, ExportedBackend[Any]]
    trainers: Mapping[str, Any]
    rank_sources: Mapping[str, str]
    backend_words: Mapping[str, Any]
    knob_words: Mapping[str, Any]
    styles: str
    page: str


def _union() -> dict[str, type[StrategySchema]]:
    return {get_args(one.model_fields["kind"].annotation)[0]: one for one in get_args(get_args(Strategy)[0])}


PRODUCT = Registries(
    schemas=_union(),
    listed=LISTED,
    searched=SEARCHED,
    predicted=PREDICTED,
    exported=EXPORTED,
    trainers=TRAINERS,
    rank_sources={kind: (ROOT / RANK.format(kind)).read_text() for kind in TRAINERS},
    backend_words=backend_words.BACKENDS,
    knob_words=knob_words.KNOBS,
    styles=(ROOT / "service/pages/static/app.css").read_text(),
    page=(ROOT / PAGE).read_text(),
)


def places_without_backend(r: Registries) -> list[str]:
    """One sentence for each place that lacks a kind of the union `Strategy`, or has one that is not in it."""
    places: dict[str, set[str]] = {
        "api_schemas/search_space.py: BACKENDS": set(r.listed),
        "tuner/search/space/backends/registry.py": set(r.searched),
        "tuner/prediction/backends/registry.py": set(r.predicted),
        "tuner/export/backends/registry.py": set(r.exported),
        "workers/rank/strategies/registry.py": set(r.trainers),
        "service/wording/backend_words.py": set(r.backend_words),
        "service/pages/static/app.css: colours .s-KIND": set(re.findall(r"\.s-([a-z0-9_]+)", r.styles)),
    }
    union = set(r.schemas)
    lacking = [f"{place} lacks {kind!r}" for place, known in places.items() for kind in sorted(union - known)]
    foreign = [
        f"{place} has {kind!r}, which no strategy is" for place, k in places.items() for kind in sorted(k - union)
    ]
    codes = [code for backend in r.predicted.values() for code in backend.codes]
    shared = [f"tuner/prediction: {code} is the code of two backends" for code in set(codes) if codes.count(code) > 1]
    return lacking + foreign + shared


def places_without_knob(r: Registries, kind: str, varied: str | None = None) -> list[str]:
    """One sentence for each place that does not know a knob of this backend, or of all.

    `varied`: vary only this one to see what predictions and exports make of it, which is quicker.
    """
    known, drawn = {**COMMON, **r.searched[kind].knobs}, list(_drawn(r, kind, varied))
    fields = {name for name in r.schemas[kind].model_fields if name != "kind"}
    knobs = {*r.searched[kind].to_knobs(drawn[0].config.strategy), *(set(TrialConfig.model_fields) - {"strategy"})}
    decided = {name for one in drawn for name in one.table}
    found = [f"{SPACE.format(kind)}: no row for {name!r}" for name in sorted(knobs - set(known))]
    found += [f"{SPACE.format(kind)}: draw never decides {name!r}" for name in sorted(knobs - decided)]
    found += [f"{KNOB_WORDS} lacks {name!r}" for name in sorted(knobs - set(r.knob_words))]
    found += [f"{PAGE} has no row for {name!r}" for name in sorted(knobs) if f"| `{name}` |" not in r.page]
    found += [f"{RANK.format(kind)} does not read {name!r}" for name in sorted(fields) if not _is_read(r, kind, name)]
    return found + _without_term(r, kind, drawn) + _without_statement(r, kind, drawn)


def _is_read(r: Registries, kind: str, field: str) -> bool:
    """By the rank, or by a renderer of the strategy (`to_ddp`, `to_deepspeed`, …) or the policy all strategies share."""
    schema = r.schemas[kind]
    names = [name for name in dir(schema) if name.startswith(("to_", "_zero_section")) or name == "sync_policy"]
    found = [inspect.getattr_static(schema, name) for name in names]
    renderers = [inspect.getsource(value.fget if isinstance(value, property) else value) for value in found]
    return re.search(rf"\.{field}\b", "".join([r.rank_sources[kind], *renderers])) is not None


@dataclass(frozen=True)
class Drawn:
    """A configuration, where it was drawn, and what else each of its knobs could have been."""

    workload: Workload
    cluster: Cluster
    config: TrialConfig
    table: Flat
    others: dict[str, TrialConfig]
    """By knob: the same with another value of it, and what follows from that."""


def _drawn(r: Registries, kind: str, varied: str | None) -> Iterator[Drawn]:
    rng = random.Random(0)
    for cluster in CLUSTERS:
        for number in range(DRAWS):
            recipe = RECIPES["fp32" if number % 2 else "bf16-mixed"]
            workload = Workload(sequence_length=64, global_batch=8 * cluster.world_size, recipe=recipe)
            domains = Domains(workload, cluster, llama("llama-tiny"), nvme=True)
            yield _one(r, kind, domains, rng, varied)


def _one(r: Registries, kind: str, domains: Domains, rng: random.Random, varied: str | None) -> Drawn:
    asked: dict[str, Question] = {}

    def choose(question: Question) -> Any:
        asked[question.knob] = question
        return rng.choice(question.values)

    table = _run(r, kind, domains, choose)
    others = {}
    for knob, question in asked.items():
        different = [value for value in question.values if (value, type(value)) != (table[knob], type(table[knob]))]
        if knob == (varied or knob) and len(different) > 0:
            others[knob] = _other(r, kind, domains, table, knob, rng.choice(different))
    return Drawn(domains.workload, domains.cluster, _config(r, kind, table), table, others)


def _other(r: Registries, kind: str, domains: Domains, table: Flat, knob: str, value: Any) -> TrialConfig:
    """The same but for one value, where that is legal."""
    try:
        alone = _config(r, kind, {**table, knob: value})
        steps = domains.accumulation(alone.micro_batch)
        alone.strategy.check_cluster(domains.cluster, domains.workload.recipe, steps)
    except ValueError:
        return _config(r, kind, _with(r, kind, domains, table, knob, value))
    return alone


def _with(r: Registries, kind: str, domains: Domains, table: Flat, knob: str, value: Any) -> Flat:
    """The same answers but one; where that leaves an answer without a place, the first candidate."""

    def answer(question: Question) -> Any:
        wanted = value if question.knob == knob else table.get(question.knob)
        return next((one for one in question.values if one == wanted and type(one) is type(wanted)), question.values[0])

    return _run(r, kind, domains, answer)


def _run(r: Registries, kind: str, domains: Domains, answer: Any) -> Flat:
    limits = KnobLimits(SpaceLimits(allow_compile=True), {**COMMON, **r.searched[kind].knobs})
    limits.backends = (kind,)
    return DefineByRun(domains, limits, answer).run({kind: r.searched[kind].draw})


def _config(r: Registries, kind: str, table: Flat) -> TrialConfig:
    backend = r.searched[kind]
    own = backend.to_fields({k: v for k, v in table.items() if k not in COMMON and k != "backend"})
    return TrialConfig(strategy=backend.config(**own), **{k: v for k, v in table.items() if k in COMMON})


def _without_term(r: Registries, kind: str, drawn: list[Drawn]) -> list[str]:
    """Knobs that change no prediction and have no reason for it, and reasons of knobs that do change one."""
    knobs = {knob for one in drawn for knob in one.others}
    moved = {knob for one in drawn for knob, other in one.others.items() if _predicted(r, one, other)}
    reasons = r.predicted[kind].without_term
    place = PREDICTION.format(kind)
    silent = [f"{place}: no prediction changes with {knob!r}, and without_term has no reason" for knob in knobs]
    return sorted(
        [line for line, knob in zip(silent, knobs, strict=True) if knob not in moved and not reasons.get(knob)]
        + [f"{place}: without_term names {knob!r}, which changes a prediction" for knob in moved & set(reasons)]
    )


def _predicted(r: Registries, one: Drawn, other: TrialConfig) -> bool:
    """Whether memory or time differ; a backend's records are handed in, so that planted ones are asked."""
    world, batch = one.cluster.world_size, one.workload.global_batch
    rows = from_configs([one.config, other], one.workload.sequence_length, world, batch, r.predicted)
    found = evaluate(shape("llama-tiny"), rows, one.workload, one.cluster)
    assert found.step is not None
    sizes = (found.memory.reserved, found.memory.host, found.step.total / one.config.micro_batch)
    return any(not np.isclose(size[0], size[-1], rtol=1e-9, atol=0) for size in map(np.atleast_1d, sizes))


def _without_statement(r: Registries, kind: str, drawn: list[Drawn]) -> list[str]:
    """Knobs that an exported file neither says nor lists among what it cannot say."""
    silent = set()
    for one in drawn:
        for knob, other in one.others.items():
            before, after = (_exported(r, one, config) for config in (one.config, other))
            silent |= {(name, knob) for name in before if before[name] == after.get(name)}
    return [f"{EXPORT.format(kind)}: {name} says nothing of {knob!r}" for name, knob in sorted(silent)]


def _exported(r: Registries, one: Drawn, config: TrialConfig) -> dict[str, str]:
    """What each consumer is told, by consumer: the file beside what it lists as lost."""
    study = study_of("llama-tiny", one.workload.recipe.name, one.cluster, one.workload.global_batch)
    contender = contender_of(config).model_copy(update={"description": ""})
    source = ExportSource(study, contender, llama("llama-tiny"))
    backend = r.exported[config.backend]
    assert gradient_accumulation(one.workload.global_batch, config.micro_batch, one.cluster.world_size)
    own = "".join(backend.files(source, config.strategy).values())
    said = {"train_snippet.py": snippet.source(source, r.exported) + own}
    said["accelerate.yaml"] = accelerate.document(source, r.exported) + own
    for name, module in (
        ("training_arguments.json", training_arguments),
        ("torchtitan.toml", torchtitan),
        ("lightning_strategy.py", lightning),
    ):
        try:
            rendered = module.render(source, r.exported)
        except ValueError:
            continue
        said[name] = "".join([*rendered.files.values(), *rendered.lossy])
    return said

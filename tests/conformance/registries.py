"""Every place that must know each backend and each knob, and what a place that does not know one is told.

The checks take the registries as arguments: a test plants a backend or a knob by handing in registries with one more.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from shardtune.api_schemas.knobs import Call, Consumer, Key, Knob
from shardtune.api_schemas.knobs.declarations import knobs_by_field
from shardtune.api_schemas.strategies import Strategy, TrialConfig
from shardtune.api_schemas.strategies.base import StrategySchema
from shardtune.api_schemas.strategies.fields.fsdp2_axes import Fsdp2Axes
from shardtune.api_schemas.training.search_space import BACKENDS as LISTED
from shardtune.service.wording import backend_words
from shardtune.tuner.export import accelerate, bundle, snippet
from shardtune.tuner.export.backends.record import ExportedBackend
from shardtune.tuner.export.backends.registry import BACKENDS as EXPORTED
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.prediction.backends.record import PredictedBackend
from shardtune.tuner.prediction.backends.registry import BACKENDS as PREDICTED
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.backends.registry import BACKENDS as SEARCHED
from shardtune.tuner.search.space.legal_values import COMMON
from shardtune.workers.rank.strategies.registry import TRAINERS
from tests.conformance.random_configs import Drawn, drawn
from tests.support.values.synthetic_studies import contender_of, study_of, with_float8
from tests.support.values.tuner_inputs import llama, shape

ROOT = Path(__file__).parents[2]
RANK = "workers/rank/strategies/{}.py"
SPACE = "tuner/search/space/backends/{}.py"
PREDICTION = "tuner/prediction/backends/{}.py"
EXPORT = "tuner/export/backends/{}.py"
ADAPTER = "workers/adapter/fully_sharded.py"
FIELDS = "api_schemas/strategies/fields"
COMMON_FIELDS = "api_schemas/strategies/trial_fields.py"
_COMMON = set(TrialConfig.model_fields) - {"strategy"}
_COMMON_PLACES = {
    RANK: "workers/blocks/prepare.py",
    SPACE: "tuner/search/space/define_by_run.py",
    PREDICTION: "tuner/prediction/configs.py",
    EXPORT: "tuner/export",
}
"""Places of a knob that every backend has, by those of a backend's."""
_RANK = "".join(
    (ROOT / name).read_text()
    for name in (
        "workers/blocks/prepare.py",
        "workers/rank/model/context.py",
        "workers/rank/training/batches.py",
        "workers/rank/training/step_loop.py",
        "workers/rank/training/step.py",
        "workers/rank/process/environment.py",
        "api_schemas/strategies/rank_environment.py",
    )
)


@dataclass(frozen=True)
class Registries:
    """All registries as the product has them; see `PRODUCT`."""

    schemas: Mapping[str, type[StrategySchema]]
    listed: tuple[str, ...]
    searched: Mapping[str, SearchedBackend[Any]]
    predicted: Mapping[str, PredictedBackend[Any]]
    exported: Mapping[str, ExportedBackend[Any]]
    trainers: Mapping[str, Any]
    rank_sources: Mapping[str, str]
    backend_words: Mapping[str, Any]
    styles: str


def _union() -> dict[str, type[StrategySchema]]:
    return {get_args(arg.model_fields["kind"].annotation)[0]: arg for arg in get_args(get_args(Strategy)[0])}


PRODUCT = Registries(
    schemas=_union(),
    listed=LISTED,
    searched=SEARCHED,
    predicted=PREDICTED,
    exported=EXPORTED,
    trainers=TRAINERS,
    rank_sources={kind: (ROOT / RANK.format(kind)).read_text() for kind in TRAINERS},
    backend_words=backend_words.BACKENDS,
    styles=(ROOT / "service/pages/static/app.css").read_text(),
)


def places_without_backend(r: Registries) -> list[str]:
    """One sentence for each place that lacks a kind of the union `Strategy`, or has one that is not in it."""
    places: dict[str, set[str]] = {
        "api_schemas/training/search_space.py: BACKENDS": set(r.listed),
        "tuner/search/space/backends/registry.py": set(r.searched),
        "tuner/prediction/backends/registry.py": set(r.predicted),
        "tuner/export/backends/registry.py": set(r.exported),
        "workers/rank/strategies/registry.py": set(r.trainers),
        "service/wording/backend_words.py": set(r.backend_words),
        "service/pages/static/app.css: colours .s-KIND": set(re.findall(r"\.s-([a-z0-9_]+)", r.styles)),
    }
    union = set(r.schemas)
    lacking = [f"{place} lacks {kind!r}" for place, recorded in places.items() for kind in sorted(union - recorded)]
    foreign = [
        f"{place} has {kind!r}, which no strategy is" for place, k in places.items() for kind in sorted(k - union)
    ]
    codes = [code for backend in r.predicted.values() for code in backend.codes]
    shared = [f"tuner/prediction: {code} is the code of two backends" for code in set(codes) if codes.count(code) > 1]
    return lacking + foreign + shared


def places_without_knob(r: Registries, kind: str, varied: str | None = None, draws: int | None = None) -> list[str]:
    """One sentence for each place that does not know a knob of this backend, or of all.

    `varied`: vary only this one to see what predictions and exports make of it, which is quicker. `draws`: number of
    configurations, where few show what is asked for.
    """
    backend, schema = r.searched[kind], r.schemas[kind]
    sample = list(drawn(kind, backend, varied, draws))
    fields = {name for name in schema.model_fields if name != "kind"}
    knobs = {*backend.to_knobs(sample[0].config.strategy), *_COMMON}
    decided = {name for case in sample for name in case.table}
    places = [f"{FIELDS}: {name!r} of {kind} declares no Knob" for name in fields if name not in knobs_by_field(schema)]
    places += [
        f"{COMMON_FIELDS}: {name!r} declares no Knob" for name in sorted(_COMMON - set(knobs_by_field(TrialConfig)))
    ]
    places += [f"{_place(SPACE, kind, name)}: draw never decides {name!r}" for name in sorted(knobs - decided)]
    places += [f"{RANK.format(kind)} does not read {name!r}" for name in sorted(fields) if not _is_read(r, kind, name)]
    places += [
        f"{_COMMON_PLACES[RANK]} does not read {name!r}" for name in sorted(_COMMON) if not _is_common_read(name)
    ]
    places += [
        line for name, knob in backend.knobs.items() for line in _incomplete(FIELDS, name, knob, _consumers(r, kind))
    ]
    places += [line for name, knob in COMMON.items() for line in _incomplete(COMMON_FIELDS, name, knob, _PROGRAMS)]
    return places + _not_in_adapter(kind, schema) + _without_term(r, kind, sample) + _without_statement(r, kind, sample)


_PROGRAMS: tuple[Consumer, ...] = ("script", "accelerate", "training_arguments", "torchtitan", "lightning")


def _consumers(r: Registries, kind: str) -> tuple[Consumer, ...]:
    """Programs in whose files a knob of the backend must be stated or listed as lost."""
    exported = r.exported[kind]
    if kind == "zero":
        return ("deepspeed",)  # all programs read its file
    optional = {name: getattr(exported, name) for name in ("training_arguments", "torchtitan", "lightning")}
    return tuple(name for name in _PROGRAMS if optional.get(name, exported.snippet) is not None)


def _incomplete(place: str, name: str, knob: Knob, consumers: tuple[Consumer, ...]) -> list[str]:
    """One sentence for each part that a knob's declaration lacks."""
    lacking = [] if knob.help else [f"{place}: {name!r} has no help"]
    lacking += [] if knob.tries or knob.values_text else [f"{place}: {name!r} has neither tries nor values_text"]
    stated = () if knob.variable else consumers
    return lacking + [
        f"{place}: {name!r} says nothing of {used!r} in exports" for used in stated if used not in knob.exports
    ]


def _not_in_adapter(kind: str, schema: type[StrategySchema]) -> list[str]:
    """Knobs of FSDP2 that a user's own script would not apply; it shards data-parallel ranks only."""
    if kind != "fsdp2":
        return []
    source = (ROOT / ADAPTER).read_text()
    knobs = {name: knob for name, knob in knobs_by_field(schema).items() if name not in Fsdp2Axes.model_fields}
    called = {name for name, knob in knobs.items() if _is_generic(knob)} if "config.calls()" in source else set()
    unread = (name for name in knobs if not (name in called or re.search(rf"\.{name}\b", source)))
    return [f"{ADAPTER} does not read {name!r}" for name in unread]


def _is_generic(knob: Knob) -> bool:
    """Whether the rank applies the knob by its declaration alone."""
    return any(isinstance(knob.exports.get(name), Key | Call) for name in ("script", "deepspeed"))


def _is_common_read(name: str) -> bool:
    return f".{name}" in _RANK or bool(COMMON[name].variable)


def _place(place: str, kind: str, knob: str) -> str:
    """Heading over the row of a knob: with its backend, or with what every backend has."""
    return _COMMON_PLACES[place] if knob in _COMMON else place.format(kind)


def _is_read(r: Registries, kind: str, field: str) -> bool:
    """Whether a knob is read by the rank, or by a renderer of the strategy (`to_ddp`, `to_deepspeed`, …) or the policy
    all strategies share."""
    schema = r.schemas[kind]
    knob = knobs_by_field(schema).get(field)
    if knob is not None and _is_generic(knob):
        return not isinstance(knob.exports.get("script"), Call) or "config.calls()" in r.rank_sources[kind]
    names = [name for name in dir(schema) if name.startswith(("to_", "_zero_section")) or name == "sync_policy"]
    attributes = [inspect.getattr_static(schema, name) for name in names]
    renderers = [inspect.getsource(value.fget if isinstance(value, property) else value) for value in attributes]
    return re.search(rf"\.{field}\b", "".join([r.rank_sources[kind], *renderers])) is not None


def _without_term(r: Registries, kind: str, sample: list[Drawn]) -> list[str]:
    """Knobs that change no prediction and have no reason for it, and reasons of knobs that do change one."""
    knobs = {knob for item in sample for knob in item.others}
    reasons = {name for name, knob in {**COMMON, **r.searched[kind].knobs}.items() if knob.without_term}
    moved: set[str] = set()
    for item in sample:
        # One prediction that changes is enough.
        moved |= {
            knob
            for knob in item.others.keys() - moved
            if _predicted(r, item, item.others[knob])
            # A change that took another knob along says nothing of this one.
            and (knob not in reasons or _differs_alone(item.config, item.others[knob]))
        }
    silent, stale = sorted(knobs - moved - reasons), sorted(moved & reasons)
    return [
        *(
            f"{_place(PREDICTION, kind, k)}: no prediction changes with {k!r}, nor does its without_term say why"
            for k in silent
        ),
        *(f"{_place(PREDICTION, kind, k)}: {k!r} changes a prediction, against its without_term" for k in stale),
    ]


def _differs_alone(config: TrialConfig, other: TrialConfig) -> bool:
    """Whether two configurations differ in one field alone."""
    fields, others = ({**dict(each.strategy), **dict(each), "strategy": None} for each in (config, other))
    return sum(fields.get(name) != others.get(name) for name in {*fields, *others}) == 1


def _predicted(r: Registries, sample: Drawn, other: TrialConfig) -> bool:
    """Whether memory or time differ; a backend's records are handed in, so that planted ones are asked."""
    world, batch = sample.cluster.world_size, sample.workload.global_batch
    rows = from_configs([sample.config, other], sample.workload.sequence_length, world, batch, r.predicted)
    llama_shape = shape("llama-tiny")
    # As many parameters, in experts.
    mixture = replace(llama_shape, experts=8, experts_per_token=2, ffn=llama_shape.ffn // 8)
    evaluation = evaluate(mixture, rows, sample.workload, sample.cluster)
    assert evaluation.step is not None
    sizes = (evaluation.memory.reserved, evaluation.memory.host, evaluation.step.total / sample.config.micro_batch)
    return any(not np.isclose(size[0], size[-1], rtol=1e-9, atol=0) for size in map(np.atleast_1d, sizes))


def _without_statement(r: Registries, kind: str, sample: list[Drawn]) -> list[str]:
    """Knobs that an exported file neither says nor lists among what it cannot say."""
    silent = set()
    for item in sample:
        before = _exported(r, item, item.config) if item.others else {}
        for knob, other in item.others.items():
            after = _exported(r, item, other)
            silent |= {(name, knob) for name in before if before[name] == after.get(name)}
    return [f"{_form_place(r, kind, name, knob)}: {name} says nothing of {knob!r}" for name, knob in sorted(silent)]


def _form_place(r: Registries, kind: str, file: str, knob: str) -> str:
    """Place of the code that writes a backend's knob into a file; fine-tuning tools read the Trainer's arguments."""
    of_module = knob in _COMMON or file.startswith(("train_snippet", "torchtitan", "lightning"))
    method = "to_accelerate" if file.startswith("accelerate") else "to_training_arguments"
    if of_module or not hasattr(r.schemas[kind], method):
        return _place(EXPORT, kind, knob)
    return f"api_schemas/strategies/{kind}.py: {method}"


def _exported(r: Registries, sample: Drawn, config: TrialConfig) -> dict[str, str]:
    """Exported text by file or format: what is written beside what is listed as lost."""
    stated = study_of("llama-tiny", sample.workload.precision.name, sample.cluster, sample.workload.global_batch)
    study = with_float8(stated, sample.workload.float8)
    contender = contender_of(config).model_copy(update={"description": ""})
    source = ExportSource(study, contender, llama("llama-tiny"))
    backend = r.exported[config.backend]
    own = "".join(backend.files(source, config.strategy).values())
    files = {"train_snippet.py": snippet.source(source, r.exported) + own}
    files["accelerate.yaml"] = accelerate.document(source, r.exported) + own
    for form, render in bundle.RENDERERS.items():
        try:
            rendered = render(source, r.exported)
        except ValueError:
            continue
        files[form] = "".join([*rendered.files.values(), *rendered.lossy])
    return files

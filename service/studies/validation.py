"""What can be said about a study before anything runs: baseline, positions, and whether anything can be searched."""

import math

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Budget, StudyRequest, StudySpec
from shardtune.api_schemas.training.models import MOST_ELEMENTS, BlockSummary, ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.service.http.errors import Invalid, from_value_error, invalid
from shardtune.service.studies import model_checks
from shardtune.service.studies.choose_precision import stated_precision
from shardtune.tuner import baseline
from shardtune.tuner.baseline import ResolvedBaseline
from shardtune.tuner.prediction import model_shape
from shardtune.tuner.search import seeds, space, stopping
from shardtune.tuner.search.samplers import gp_needs
from shardtune.tuner.search.seeds import Seeds

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ANY_HEADS = 2**12 * 3**2 * 5 * 7
"""Where the file leaves them to transformers: such as most numbers of ranks divide."""
_MOST_BLOCKS = 64
"""Of the stand-in: the space asks whether there are 1, 2, 4 or 8 blocks to a unit, never for the hundredth."""


def check(spec: StudySpec, cluster: Cluster) -> ResolvedBaseline:
    """The baseline as a configuration of ours, with notes on the way there.

    Raises:
        Invalid: the sampler is not installed, the baseline contradicts the workload, no batch or mesh comes out, or the limits leave nothing.
    """
    model_checks.check(spec)
    _check_positions(spec)
    _check_sampler(spec)
    try:
        resolved = baseline.resolve_with_notes(spec.baseline, spec.workload, cluster, spec.model)
    except ValueError as error:
        raise from_value_error("" if str(error).startswith("baseline.") else "baseline", error) from error
    try:
        built = space.build(spec.workload, cluster, _stand_in(spec.model), spec.space)
    except ValueError as error:
        field = "workload" if str(error).startswith("global_batch") else ""
        raise from_value_error(field, error) from error
    planned = _what_a_small_budget_tries(spec.budget, seeds.seed_configs(built, cluster, resolved.config))
    return resolved._replace(notes=(*model_checks.remarks(spec.model), *resolved.notes, *planned))


def check_without_worker(request: StudyRequest, cluster: Cluster | None) -> None:
    """What is wrong with a request whatever runs it; `cluster` None: only a worker can tell.

    Raises:
        Invalid: as of `check`.
    """
    if cluster is None:
        model_checks.check_architecture(request.model)
        _check_positions(request)
        _check_sampler(request)
        return
    # Which precision `auto` is depends on the device, and so does whether the baseline's dtypes are the study's: what every
    # precision rejects is wrong on any.
    named, _ = stated_precision(request)
    rejected = [
        _rejection(request.with_precision(precision), cluster)
        for precision in ([named] if named else PRECISIONS.values())
    ]
    first = rejected[0]
    if first is not None and all(rejected):
        raise first


def _rejection(spec: StudySpec, cluster: Cluster) -> Invalid | None:
    try:
        check(spec, cluster)
    except Invalid as error:
        return error
    return None


def _what_a_small_budget_tries(budget: Budget, starts: Seeds) -> tuple[str, ...]:
    """Said before it runs: with few trials, many may go to what a search begins with, all of it at one micro batch."""
    trials, enough = budget.max_trials, len(starts) + stopping.MIN_GUIDED
    if trials is None or trials >= enough:
        return ()
    names = "; ".join(config.describe() for config, _ in starts[:trials])
    left = max(0, trials - len(starts))
    return (
        f"budget.max_trials ({trials}): up to {min(trials, len(starts))} go to where a search starts ({names}; of defaults "
        f"those that the baseline and a second backend need), and {f'at least {left} are' if left else 'maybe none is'} "
        f"chosen for what they may gain; {enough} trials leave {stopping.MIN_GUIDED} for that in any case",
    )


def _check_sampler(spec: StudyRequest) -> None:
    if spec.sampler == "gp" and not gp_needs.gp_is_installed():
        needs = " and ".join(gp_needs.GP_NEEDS)
        raise invalid(
            "sampler",
            "gp",
            f"sampler ('gp') needs {needs} in the service's environment, where they are not; "
            "install shardtune[gp] there, or use guided, tpe or random",
        )


def _check_positions(spec: StudyRequest) -> None:
    config, length = spec.model.trained_config, spec.workload.sequence_length
    if spec.model.is_own:
        return
    name = next((name for name in _POSITIONS if isinstance(config.get(name), int)), None)
    if name is None:
        return
    positions = _integer(config[name], length)
    if length > positions:
        raise invalid(
            "workload.sequence_length",
            length,
            f"sequence_length ({length}) exceeds the model's {name} ({positions}); "
            f"use at most {positions}, or raise {name} in the model's config",
        )


def _stand_in(model: ModelSpec) -> ModelSummary:
    """A profile good enough to see whether the space is empty: only sizes of buckets depend on the real one."""
    layers = next((_integer(model.trained_config.get(name), 1) for name in _LAYERS if name in model.trained_config), 1)
    hidden = next(
        (_integer(model.trained_config.get(name), 64) for name in _HIDDEN if name in model.trained_config), 64
    )
    largest = min(hidden * hidden, MOST_ELEMENTS)
    block = min(12 * largest, MOST_ELEMENTS)
    total = min(layers * block + 32_000 * hidden, MOST_ELEMENTS)
    widths = (None, "your own code makes the model") if model.is_own else _widths(model.trained_config)
    stages = (None, "your own code makes the model") if model.is_own else _stages(model.trained_config, layers)
    experts = (None, None, None) if model.is_own else _experts(model.trained_config)
    return ModelSummary(
        parameters=total,
        active_parameters=total,
        blocks=tuple(
            BlockSummary(name=f"{index}", parameters=block, largest_parameter=largest, forward_flops_per_token=1.0)
            for index in range(min(layers, _MOST_BLOCKS))
        ),
        block_class="Block",
        # Present, so that a limit on a knob only a mixture of experts has is not rejected here.
        moe_class="Experts",
        forward_flops_per_token=1.0,
        hidden_size=hidden,
        vocab_size=32_000,
        max_positions=None,
        context_heads=None if model.is_own else _heads(model.trained_config),
        context_note="your own code makes the batches and the loss" if model.is_own else None,
        tensor_divisor=widths[0],
        tensor_note=widths[1],
        pipeline_blocks=stages[0],
        pipeline_note=stages[1],
        experts=experts[0],
        expert_width=experts[1],
        expert_note=experts[2],
    )


def _widths(config: dict[str, JsonValue]) -> tuple[int | None, str | None]:
    """`tensor_divisor` and `tensor_note`, as far as the file says."""
    known = model_shape.told_by(config)
    return (_heads(config), None) if known is None else known.tensor


def _stages(config: dict[str, JsonValue], layers: int) -> tuple[int | None, str | None]:
    """`pipeline_blocks` and `pipeline_note`, likewise."""
    known = model_shape.told_by(config)
    blocks, note = (layers, None) if known is None else known.pipeline
    return (None if blocks is None else max(1, min(blocks, MOST_ELEMENTS))), note


def _experts(config: dict[str, JsonValue]) -> tuple[int | None, int | None, str | None]:
    """`experts`, `expert_width` and `expert_note`, likewise."""
    known = model_shape.told_by(config)
    if known is not None:
        return known.divisible_experts
    return next((_integer(config[name], 1) for name in _EXPERTS if name in config), _ANY_HEADS), _ANY_HEADS, None


def _heads(config: dict[str, JsonValue]) -> int:
    """Of queries and of keys, as far as the file says: their greatest common divisor."""
    heads = next((_integer(config.get(name), _ANY_HEADS) for name in _HEADS if name in config), _ANY_HEADS)
    return math.gcd(heads, _integer(config.get("num_key_value_heads"), heads))


def _integer(value: JsonValue, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 100_000_000 else otherwise

"""Check a new study before anything runs: its baseline and sequence positions, and whether its space contains anything
to search.
"""

import math

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import optimizer_support
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.strategies.fields.mlp_slices import EXPERTS, OWN_CODE
from shardtune.api_schemas.strategies.recipe_support import deepcompile_support, float8_support, lora_support
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.training.models import MOST_ELEMENTS, BlockSummary, ModelSpec, ModelSummary
from shardtune.api_schemas.training.step_trace import TraceFailure
from shardtune.api_schemas.training.workload import PRECISIONS, IndivisibleBatch, Precision
from shardtune.service.http.errors import Invalid, invalid, invalid_from_value_error
from shardtune.service.studies import model_checks
from shardtune.service.studies.choose_precision import stated_precision
from shardtune.tuner import baseline
from shardtune.tuner.baseline import ResolvedBaseline
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.search import seeds, space, stopping
from shardtune.tuner.search.samplers import gp_needs
from shardtune.tuner.search.seeds import Seeds
from shardtune.tuner.verdict.recipes import configs

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# Divisible by most numbers of ranks, so that no mesh is rejected for a number that is not known yet.
_ASSUMED_COUNT = 2**12 * 3**2 * 5 * 7
"""Number assumed for attention heads, experts and expert width if the model's config omits them, so that
transformers' defaults apply.
"""
_NOT_TRACED = TraceFailure(code="error", message="no worker has traced a step of it yet")
"""Mark of the user's own code in the stand-in for a model summary, in which no step is traced."""
# The space only asks whether there are 1, 2, 4 or 8 blocks to an FSDP unit; more of them change nothing.
_MAX_BLOCKS = 64
"""Maximum number of blocks (layers) in the stand-in for a model summary, which serves to check a study before a
worker has summarised its model.
"""


def check(spec: StudySpec, cluster: Cluster) -> ResolvedBaseline:
    """Check a new study, and convert its baseline into Shardtune's configuration format, with notes for the user.

    Raises:
        Invalid: the sampler is not installed, the baseline contradicts the workload, no batch or mesh is possible, or
            the limits leave nothing to search.
    """
    model_checks.check(spec, cluster)
    _check_positions(spec)
    _check_sampler(spec)
    try:
        spec.workload.precision.check_low_states()
    except ValueError as error:
        raise invalid_from_value_error("workload.precision", error) from error
    try:
        resolved = baseline.resolve_with_notes(spec.baseline, spec.workload, cluster, spec.model)
    except ValueError as error:
        raise invalid_from_value_error("baseline", error) from error
    try:
        # Built against a stand-in for the model: limits that leave nothing are rejected before a worker is taken.
        search_space = space.build(spec.workload, cluster, _stand_in_summary(spec.model), spec.space)
    except IndivisibleBatch as error:
        raise invalid_from_value_error("workload", error) from error
    except ValueError as error:
        raise invalid_from_value_error("", error) from error
    _check_considered(spec, cluster)
    compiles = search_space.limits.compiles(search_space.domains.on_gpu)
    dropped_notes = (
        *optimizer_support.dropped_note(spec.space.backends, spec.workload.optimizer),
        *float8_support.dropped_note(spec.space.backends, spec.space.knobs, spec.workload.float8),
        *lora_support.dropped_notes(spec.space.backends, spec.space.knobs, spec.workload.adapter, compiles=compiles),
        *deepcompile_support.dropped_note(spec.space.backends, spec.space.knobs, spec.workload),
        *float8_gather.dropped_note(spec.space.knobs, spec.workload.float8),
    )
    budget_notes = _small_budget_note(spec.budget, seeds.seed_configs(search_space, cluster, resolved.config))
    return resolved._replace(
        notes=(*model_checks.model_notes(spec.model), *resolved.notes, *dropped_notes, *budget_notes)
    )


def _check_considered(spec: StudySpec, cluster: Cluster) -> None:
    """Reject a recipe (numerical format or optimizer) that none of the default configurations of the study's backends
    can train with.

    Raises:
        Invalid: names the recipe and the reason.
    """
    documented = [config for config in seeds.documented_defaults(cluster) if config.backend in spec.space.backends]
    # Defaults that the stated recipe cannot train either say nothing about another one.
    defaults = [config for config in documented if configs.why_illegal(None, config, spec, cluster) is None]
    for name in spec.consider:
        reasons = [configs.why_illegal(name, config, spec, cluster) for config in defaults]
        if reasons and all(reasons):
            raise invalid("consider", name, f"consider ({name!r}): {reasons[0]}; or leave the recipe out")


def check_without_worker(request: StudyRequest, cluster: Cluster | None) -> None:
    """Check a request for a study that no worker can run yet. `cluster` is None if the cluster becomes known only
    once a worker registers.

    Raises:
        Invalid: the sampler is not installed, the baseline contradicts the workload, no batch or mesh is possible, or
            the limits leave nothing to search.
    """
    if cluster is None:
        model_checks.check_architecture(request.model)
        model_checks.check_adapter(request)
        model_checks.check_data(request)
        model_checks.check_attention(request)
        model_checks.check_float8(request)
        model_checks.check_fp16(request)
        _check_positions(request)
        _check_sampler(request)
        return
    # The device decides what precision `auto` means, and whether the baseline's dtypes match. An error under every
    # precision is
    # an error on any device.
    stated, _ = stated_precision(request)
    rejected = [
        _find_error(request.with_precision(precision), cluster)
        for precision in ([stated] if stated else _chosen_by_devices())
    ]
    first = rejected[0]
    if first is not None and all(rejected):
        raise first


def _chosen_by_devices() -> list[Precision]:
    """Precisions that may be chosen by the device or by the baseline, if a request states none."""
    return [precision for precision in PRECISIONS.values() if not precision.is_chosen_only_by_name]


def _find_error(spec: StudySpec, cluster: Cluster) -> Invalid | None:
    try:
        check(spec, cluster)
    except Invalid as error:
        return error
    return None


def _small_budget_note(budget: Budget, initial_configs: Seeds) -> tuple[str, ...]:
    """Note for a study with so few trials that most of them are the configurations with which every search begins."""
    trials, sufficient = budget.max_trials, len(initial_configs) + stopping.MIN_GUIDED
    if trials is None or trials >= sufficient:
        return ()
    taken = min(trials, len(initial_configs))
    return (
        f"budget.max_trials ({trials}): starting configurations take up to {taken} of them; raise it to {sufficient} or "
        "more for a longer search",
    )


def _check_sampler(spec: StudyRequest) -> None:
    if spec.sampler == "gp" and not gp_needs.gp_is_installed():
        packages = " and ".join(gp_needs.GP_PACKAGES)
        raise invalid(
            "sampler",
            "gp",
            f"sampler ('gp') needs {packages} in the service's environment, where they are not; "
            "install shardtune[gp] there, or use guided, tpe or random",
        )


def _check_positions(spec: StudyRequest) -> None:
    config, length = spec.model.trained_config, spec.workload.sequence_length
    if spec.model.is_own:
        return
    name = next((name for name in _POSITIONS if isinstance(config.get(name), int)), None)
    if name is None:
        return
    positions = _positive_int(config[name], length)
    if length > positions:
        raise invalid(
            "workload.sequence_length",
            length,
            f"sequence_length ({length}) exceeds the model's {name} ({positions}); "
            f"use at most {positions}, or raise {name} in the model's config",
        )


def _stand_in_summary(model: ModelSpec) -> ModelSummary:
    """Stand-in for the model summary (sizes and FLOPs of the model), as long as no worker has counted them. It
    suffices to check whether the search space is empty; only bucket sizes depend on the real summary.
    """
    layers = next(
        (_positive_int(model.trained_config.get(name), 1) for name in _LAYERS if name in model.trained_config), 1
    )
    hidden = next(
        (_positive_int(model.trained_config.get(name), 64) for name in _HIDDEN if name in model.trained_config), 64
    )
    largest = min(hidden * hidden, MOST_ELEMENTS)
    block = min(12 * largest, MOST_ELEMENTS)
    total = min(layers * block + 32_000 * hidden, MOST_ELEMENTS)
    widths = (None, "your own code makes the model") if model.is_own else _tensor_limits(model.trained_config)
    stages = (None, "your own code makes the model") if model.is_own else _pipeline_limits(model.trained_config, layers)
    experts = (None, None, None) if model.is_own else _expert_limits(model.trained_config)
    return ModelSummary(
        parameters=total,
        active_parameters=total,
        blocks=tuple(
            BlockSummary(name=f"{index}", parameters=block, largest_parameter=largest, forward_flops_per_token=1.0)
            for index in range(min(layers, _MAX_BLOCKS))
        ),
        block_class="Block",
        # A model without a name for its experts may still have some: the worker's summary says so.
        moe_class="Experts" if _names_experts(model) else None,
        forward_flops_per_token=1.0,
        hidden_size=hidden,
        vocab_size=32_000,
        max_positions=None,
        context_heads=None if model.is_own else _head_divisor(model.trained_config),
        context_note="your own code makes the batches and the loss" if model.is_own else None,
        loss_note="your own code computes the loss" if model.is_own else None,
        mlp_note=_mlp_note(model),
        tensor_divisor=widths[0],
        tensor_note=widths[1],
        pipeline_blocks=stages[0],
        pipeline_note=stages[1],
        experts=experts[0],
        expert_width=experts[1],
        expert_note=experts[2],
        trace_failure=_NOT_TRACED if model.is_own else None,
    )


def _mlp_note(model: ModelSpec) -> str | None:
    """Reason why the model's MLPs cannot be computed in slices, as far as the model's config shows one; None if it
    shows none.
    """
    if model.is_own:
        return OWN_CODE
    return EXPERTS if _names_experts(model) else None


def _names_experts(model: ModelSpec) -> bool:
    """Whether the model's config names several experts per layer."""
    return not model.is_own and any(_positive_int(model.trained_config.get(name), 1) > 1 for name in _EXPERTS)


def _tensor_limits(config: dict[str, JsonValue]) -> tuple[int | None, str | None]:
    """Values of the model summary's fields `tensor_divisor` and `tensor_note`, which limit tensor parallelism, as far
    as the model's config contains them.
    """
    shape = config_shape.shape_if_known(config)
    return (_head_divisor(config), None) if shape is None else shape.tensor


def _pipeline_limits(config: dict[str, JsonValue], layers: int) -> tuple[int | None, str | None]:
    """Values of the model summary's fields `pipeline_blocks` and `pipeline_note`, which limit pipeline parallelism,
    as far as the model's config contains them.
    """
    shape = config_shape.shape_if_known(config)
    blocks, note = (layers, None) if shape is None else shape.pipeline
    return (None if blocks is None else max(1, min(blocks, MOST_ELEMENTS))), note


def _expert_limits(config: dict[str, JsonValue]) -> tuple[int | None, int | None, str | None]:
    """Values of the model summary's fields `experts`, `expert_width` and `expert_note`, which limit expert
    parallelism, as far as the model's config contains them.
    """
    shape = config_shape.shape_if_known(config)
    if shape is not None:
        return shape.divisible_experts
    return (
        next((_positive_int(config[name], 1) for name in _EXPERTS if name in config), _ASSUMED_COUNT),
        _ASSUMED_COUNT,
        None,
    )


def _head_divisor(config: dict[str, JsonValue]) -> int:
    """Greatest common divisor of the number of query heads and the number of key-value heads, with an assumed number
    of heads if the model's config names none.
    """
    heads = next((_positive_int(config.get(name), _ASSUMED_COUNT) for name in _HEADS if name in config), _ASSUMED_COUNT)
    return math.gcd(heads, _positive_int(config.get("num_key_value_heads"), heads))


def _positive_int(value: JsonValue, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 100_000_000 else default

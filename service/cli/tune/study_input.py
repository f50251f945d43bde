"""Read the study of `shardtune tune` from its file and options, and reject one that nothing could run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import Target
from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.service.cli import lengths_file, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.models import source as model_source
from shardtune.service.cli.processes import detect_inventory
from shardtune.service.cli.tune.options import TuneOptions

if TYPE_CHECKING:
    from shardtune.service.cli.tune import early_checks
else:
    # It imports the service's checks, which a file that cannot be read need not wait for.
    early_checks = LazyModule("shardtune.service.cli.tune.early_checks")


def read(options: TuneOptions, say: Callable[[str], None]) -> StudyRequest:
    """Read a study and replace the values that command-line options state; `say` receives a line for each replaced
    value.

    Raises:
        InputError: there is no study, or a field is missing, unknown or wrong.
    """
    if options.study is None:
        raise InputError(
            "STUDY (missing): give a study file, a model's config.json or folder, or its name, such as "
            "examples/llama-tiny.json or Qwen/Qwen3-8B"
        )
    named = model_source.named_model(str(options.study)) if model_source.is_name(str(options.study)) else None
    values = {} if named is not None else study_file.read_json_object(options.study)
    data = lengths_file.option_values(options.data, options.layout)
    target = None if options.target is None else study_file.read_target(options.target)
    if named is not None or study_file.is_bare_config(values):
        # Before the seconds in which the hardware is detected.
        early_checks.check_architecture(study_file.bare_model(named or values))
        inventory = detect_inventory(options.ranks, options.hosts)
        spec, words = study_file.default_study(named or values, inventory, data, target)
        if spec.model.hub is not None:
            say(f"model {spec.model.hub.id} at commit {spec.model.hub.revision}")
        say(words)
    else:
        spec = study_file.validate_study(values, options.study.parent)
    spec, replaced = with_options(
        spec,
        ranks=options.ranks,
        max_trials=options.max_trials,
        max_pairs=options.max_pairs,
        memory_gib=options.memory_gib,
        adapter=options.adapter,
        data=data,
        target=target,
    )
    if options.wait_for_quiet_min is not None:
        spec = spec.model_copy(update={"wait_for_quiet_s": 60 * options.wait_for_quiet_min})
    for line in replaced:
        say(line)
    return spec


def check(spec: StudyRequest, options: TuneOptions) -> None:
    """Reject a study that no worker could run.

    Raises:
        InputError: names field, value and remedy.
    """
    early_checks.check_own_code(spec.model, options.allowed)
    early_checks.check_architecture(spec.model)
    if not options.hosts:
        early_checks.check_study(spec, options.ranks)


def with_options(
    spec: StudyRequest,
    *,
    ranks: int | None = None,
    max_trials: int | None = None,
    max_pairs: int | None = None,
    memory_gib: float | None = None,
    adapter: AdapterSchema | None = None,
    data: Mapping[str, JsonValue] = study_file.NO_DATA,
    target: Target | None = None,
) -> tuple[StudyRequest, list[str]]:
    """Apply command-line options to a study; also return a line for each value that an option replaced.

    Raises:
        InputError: the study cannot be trained with the option's adapter or data.
    """
    replaced: list[str] = []
    updates: dict[str, Any] = {}
    if max_trials is not None or max_pairs is not None:
        updates["budget"] = _with_limits(spec.budget, max_trials, max_pairs)
    if isinstance(spec.cluster, Cluster) and (ranks or memory_gib):
        updates["cluster"], lines = _with_machine(spec.cluster, ranks, memory_gib)
        replaced += lines
    # The option states only a size: it changes nothing of a study's target of the same size.
    if target is not None and not target.is_size_of(spec.target):
        updates["target"] = target.with_batch_of(spec.target)
        if spec.target is not None:
            replaced.append(f"--target {target.described} replaces the study's {spec.target.described}")
    if adapter is not None:
        updates["workload"], before = _with_values(spec.workload, {"adapter": adapter}), spec.workload.adapter
        if before not in (None, adapter):
            replaced.append(f"{adapter.describe()} replaces the study's {before.describe()}")
    if data:
        updates["workload"] = _with_data(updates.get("workload", spec.workload), data)
        if spec.workload.data not in (None, updates["workload"].data):
            replaced.append(f"data of {updates['workload'].data.describe()} replaces the study's")
    return spec.model_copy(update=updates), replaced


def _with_limits(budget: Budget, max_trials: int | None, max_pairs: int | None) -> Budget:
    limits: dict[str, Any] = {} if max_pairs is None else {"max_pairs": max_pairs}
    if max_trials is not None:
        # An explicit number of trials replaces the budget that follows from the planned training.
        limits |= {"max_trials": max_trials, "planned_gpu_hours": None}
    return budget.model_copy(update=limits)


def _with_machine(cluster: Cluster, ranks: int | None, memory_gib: float | None) -> tuple[Cluster, list[str]]:
    replaced = []
    if ranks and ranks != cluster.world_size:
        replaced.append(f"--ranks {ranks} replaces the study's cluster of {cluster.nodes} × {cluster.gpus_per_node}")
        cluster = cluster.model_copy(update={"nodes": 1, "gpus_per_node": ranks})
    if memory_gib and memory_gib != cluster.memory_gib:
        replaced.append(f"--memory-gib {memory_gib:g} replaces the study's {cluster.memory_gib:g}")
        cluster = cluster.model_copy(update={"memory_gib": memory_gib})
    return cluster, replaced


def _with_data(workload: WorkloadRequest, stated: Mapping[str, JsonValue]) -> WorkloadRequest:
    before = {} if workload.data is None else workload.data.model_dump()
    if "lengths" not in before | dict(stated):
        raise InputError(
            f"--layout ({stated['layout']}) arranges samples of several lengths; give the lengths with --data"
        )
    return _with_values(workload, {"data": before | dict(stated)})


def _with_values(workload: WorkloadRequest, values: Mapping[str, Any]) -> WorkloadRequest:
    try:
        return WorkloadRequest.model_validate({**dict(workload), **values})
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None

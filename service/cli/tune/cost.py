"""Print what a study should take and gain, for `tune --cost`: nothing is started but the detection of the hardware."""

from collections.abc import Sequence
from pathlib import Path

from shardtune.api_schemas.access import regular_file
from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport, MeasuredHardware
from shardtune.api_schemas.studies.study_cost import CostOfSizes, SizeCost, StudyCost
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.service.cli import environment
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.processes import detect_inventory
from shardtune.service.cli.tune.early_checks import as_input_error
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.http.errors import Invalid
from shardtune.service.studies.study_cost import StudyMachine, estimate_on
from shardtune.service.wording import cost_words
from shardtune.tuner.prediction import catalogue


def print_cost(spec: StudyRequest, options: TuneOptions) -> None:
    """Print a study's estimated time and cost, as rows or as one JSON object.

    Raises:
        InputError: the service would reject the study.
    """
    machine = _machine(spec, options)
    cost = estimate(spec, machine, environment.read_settings().measure)
    if options.as_json:
        print(cost.model_dump_json())
        return
    _print_rows(cost_words.cost_rows(cost, on_cpu=_is_cpu(machine)))


def print_costs(studies: Sequence[tuple[TuneOptions, StudyRequest]], whole: TuneOptions) -> None:
    """Print the estimated time and cost of `tune --rungs`: of the study on each size, smallest first, and of all
    together. They are printed as rows or as one JSON object.

    Raises:
        InputError: the service would reject the study on one of the sizes.
    """
    machines = [_machine(spec, options) for options, spec in studies]
    plan, full_size = environment.read_settings().measure, whole.nodes if whole.hosts else whole.ranks
    sizes = [*whole.rungs, full_size or 1]
    costs = CostOfSizes.of_sizes(
        [
            SizeCost(size=size, cost=estimate(spec, machine, plan))
            for size, machine, (_, spec) in zip(sizes, machines, studies, strict=True)
        ]
    )
    if whole.as_json:
        print(costs.model_dump_json())
        return
    for of_size, machine in zip(costs.sizes, machines, strict=True):
        print(f"{counted(of_size.size, whole.unit)}:")
        _print_rows(cost_words.cost_rows(of_size.cost, on_cpu=_is_cpu(machine)))
        print()
    print("together:")
    _print_rows(cost_words.time_rows(costs.minutes, costs.gpu_hours, on_cpu=_is_cpu(machines[-1])))


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    print("\n".join(f"{name:<12}{text}" for name, text in rows))


def _is_cpu(machine: StudyMachine) -> bool:
    return machine.cluster.device == "cpu"


def estimate(spec: StudyRequest, machine: StudyMachine, plan: MeasurePlan) -> StudyCost:
    """Estimate a study's time and cost, and convert errors to messages for a person.

    Raises:
        InputError: the service would reject the study.
    """
    try:
        return estimate_on(spec, machine, plan)
    except Invalid as error:
        raise as_input_error(error) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def _machine(spec: StudyRequest, options: TuneOptions) -> StudyMachine:
    if isinstance(spec.cluster, Cluster):
        return StudyMachine.of_cluster(spec.cluster, _measured(spec.cluster, options.state_dir))
    if spec.cluster != "local":
        try:
            return StudyMachine.of_cluster(catalogue.parse_cluster(spec.cluster))
        except ValueError as error:
            raise InputError(str(error)) from None
    cluster = detect_inventory(options.ranks, options.hosts).cluster
    if cluster.device == "cpu" and options.memory_gib is not None:
        cluster = cluster.model_copy(update={"memory_gib": options.memory_gib})
    return StudyMachine.of_cluster(cluster, _measured(cluster, options.state_dir))


def _measured(cluster: Cluster, state_dir: Path) -> MeasuredHardware | None:
    """Return the newest rates that were measured on this machine for the same device and number of ranks; None if none
    were."""
    files = sorted((state_dir / "worker").glob("hardware-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for file in files:
        try:
            report = HardwareReport.model_validate_json(regular_file.read_text(file))
        # A report of another release, or one that is being written.
        except (OSError, ValueError):
            continue
        if (report.cluster.gpu, report.cluster.world_size) == (cluster.gpu, cluster.world_size):
            return report.measured
    return None

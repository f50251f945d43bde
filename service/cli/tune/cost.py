"""Print what a study should take and gain, for `tune --cost`: nothing is started but the detection of the hardware."""

from pathlib import Path

from shardtune.api_schemas.access import regular_file
from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport, MeasuredHardware
from shardtune.api_schemas.studies.study_cost import StudyCost
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
    rows = cost_words.cost_rows(cost, on_cpu=machine.cluster.device == "cpu")
    print("\n".join(f"{name:<12}{text}" for name, text in rows))


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

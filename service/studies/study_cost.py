"""Estimate what a study takes and gains before anything runs, for `tune --cost`, `POST /v1/predictions/study-cost` and
the page of a new study.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig, optimizer_support
from shardtune.api_schemas.strategies.recipe_support import float8_support, fp16_support, lora_support
from shardtune.api_schemas.studies.study_cost import StudyCost
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.db.queries import keys
from shardtune.service.access import quotas
from shardtune.service.hub import named_models
from shardtune.service.planning import study_cost
from shardtune.service.planning.foreseen_run import PlanOf, RunPlan
from shardtune.service.planning.study_cost import CostPredictions
from shardtune.service.process.context import Context
from shardtune.service.studies import predictions, validation
from shardtune.service.studies.choose_precision import choose_precision
from shardtune.service.studies.local_machine import local_machine
from shardtune.service.studies.placement import why_no_worker
from shardtune.service.workers import registry, study_clusters
from shardtune.service.workers.target_rungs import on_rung
from shardtune.tuner.prediction import catalogue, traced_shape
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, Calibrations
from shardtune.tuner.prediction.shapes.config_shape import NoClosedForm
from shardtune.tuner.search import fastest, seeds
from shardtune.tuner.verdict import short_steps

_TOP = 5
"""Number of the fastest configurations that give the range of step times of a usual trial."""


@dataclass(frozen=True)
class StudyMachine:
    """Hardware on which a study would run, with the hardware rates and the predictor's corrections measured on it so
    far.
    """

    cluster: Cluster
    device: DeviceDtypes
    hardware: MeasuredHardware | None = None
    calibrations: Calibrations = NO_CALIBRATIONS

    @classmethod
    def of_cluster(cls, cluster: Cluster, hardware: MeasuredHardware | None = None) -> "StudyMachine":
        """Describe a cluster for an estimate: with the measured rates if they are given, else with the GPU
        catalogue's figures.
        """
        return cls(cluster, catalogue.dtypes_of(cluster), hardware)


def estimate(context: Context, request: StudyRequest) -> StudyCost:
    """Estimate the cost and gain of a study on the cluster that its request names; `local` means the live workers'
    cluster.

    Raises:
        Invalid: the study would be rejected, or `local` has no worker or several clusters.
        ApiError: code `hub_unreachable`: the model hub does not answer.
    """
    request = named_models.with_config_of(context, request)
    machine, traces = _machine_of(context, request), partial(predictions.add_trace, context)
    cost = estimate_on(request, machine, context.settings.measure, traces)
    with context.db.read() as session:
        no_worker = why_no_worker(request, registry.live_workers(context, session))
        project = keys.project(session, context.principal.home)
        rejection = quotas.why_no_study(session, project.id, project.quotas, context.now()) if project else None
    return cost.model_copy(update={"no_worker": no_worker, "used_up_quota": rejection and rejection.detail})


def _machine_of(context: Context, request: StudyRequest) -> StudyMachine:
    cluster = study_clusters.named_cluster(request)
    if cluster is not None:
        return StudyMachine.of_cluster(cluster)
    cluster, device, experience = local_machine(context)
    return StudyMachine(cluster, device, experience.hardware, experience.calibrations)


def _without_trace(request: PredictionRequest) -> PredictionRequest:
    return request


def estimate_on(
    request: StudyRequest,
    machine: StudyMachine,
    plan: MeasurePlan,
    with_trace: Callable[[PredictionRequest], PredictionRequest] = _without_trace,
) -> StudyCost:
    """Estimate the cost and gain of a study on a machine. `with_trace` is a function that adds the trace of the
    user's own model code, if one is known, to a prediction request.

    Raises:
        Invalid: the study would be rejected.
    """
    request = on_rung(request, machine.cluster, machine.hardware)
    precision, _ = choose_precision(request, [machine.device])
    spec = request.with_precision(precision)
    baseline = validation.check(spec, machine.cluster)
    has_baseline = baseline.config is not None
    configs = (baseline.config,) if baseline.config is not None else tuple(_defaults(spec, machine.cluster))
    forecast = CostPredictions((), ())
    request_of_predictions = with_trace(_prediction_request(spec, machine, configs))
    if _is_predictable(request_of_predictions):
        # Without a closed form the model has to be built on a worker before anything can be predicted.
        try:
            table = fastest.answer_request(request_of_predictions, machine.calibrations, machine.device, spec.objective)
            forecast = CostPredictions(table.fastest, table.predictions)
        except NoClosedForm:
            pass
    plan_of = _plans(spec, machine.cluster, plan, forecast)
    considered = study_cost.ConsideredPlan(len(spec.consider), spec.consider_steps)
    budget = spec.budget
    if spec.model.script is not None:
        # A script decides itself how long it trains, so the study leaves its sustained run out.
        budget = budget.model_copy(update={"sustained_run_s": 0.0})
    return study_cost.estimate(
        budget, machine.cluster, plan_of, forecast, has_baseline=has_baseline, considered=considered
    )


def _is_predictable(request: PredictionRequest) -> bool:
    model, summary = request.model, request.model_summary
    if model.is_own:
        return summary is not None and summary.step_trace is not None
    return traced_shape.why_unpredictable(model.trained_config) is None


def _plans(spec: StudySpec, cluster: Cluster, plan: MeasurePlan, forecast: CostPredictions) -> PlanOf:
    """Return the function that gives the measurement plan of a configuration's runs. As in a real study, the first
    baseline's step time decides whether all runs time short steps (with fewer micro batches).
    """
    first = next((prediction.speed for prediction in forecast.baselines), None)
    samples = short_steps.parity_samples(spec, cluster, None if first is None else first.step_time_s)

    def plan_of(config: TrialConfig) -> RunPlan:
        per_micro_batch = config.micro_batch * config.data_ranks(cluster.world_size)
        if samples is None or spec.workload.global_batch % per_micro_batch:
            return RunPlan(plan, cycle_steps=spec.workload.steps_per_cycle)
        measure = short_steps.measure_plan(plan, samples, config, spec.workload, cluster)
        return RunPlan(measure, spec.workload.global_batch // per_micro_batch)

    return plan_of


def _defaults(spec: StudySpec, cluster: Cluster) -> list[TrialConfig]:
    return [
        config
        for config in seeds.documented_defaults(cluster)
        if config.backend in spec.space.backends
        and optimizer_support.can_train(config, spec.workload.optimizer)
        and float8_support.can_train(config, spec.workload.float8)
        and lora_support.can_train(config, spec.workload.adapter)
        and fp16_support.can_train(config, spec.workload)
    ]


def _prediction_request(spec: StudySpec, machine: StudyMachine, configs: tuple[TrialConfig, ...]) -> PredictionRequest:
    workload = spec.workload
    return PredictionRequest(
        model=spec.model,
        cluster=machine.cluster,
        hardware=machine.hardware,
        sequence_length=workload.sequence_length,
        precision=workload.precision,
        optimizer=workload.optimizer,
        adapter=workload.adapter,
        data=workload.data,
        float8=workload.float8,
        attention=workload.attention,
        global_batch=workload.global_batch,
        configs=configs,
        space=spec.space,
        top=_TOP,
    )

"""Tools that read studies: `best`, `compare`, `studies_list`, `studies_status` and `export`."""

from shardtune.api_schemas.recommendations.best import BestConfig
from shardtune.api_schemas.studies.comparisons import ComparedConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.service.client import ServiceClient
from shardtune.service.mcp import measured_rows
from shardtune.service.mcp.configs import short_config
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.schemas.figures import SPEED, figure
from shardtune.service.mcp.schemas.study_answers import (
    BestAnswer,
    CompareAnswer,
    ComparedSide,
    ExportAnswer,
    StudiesListAnswer,
    StudiesStatusAnswer,
)
from shardtune.service.mcp.schemas.study_arguments import (
    BestArguments,
    CompareArguments,
    ExportArguments,
    StudiesListArguments,
    StudiesStatusArguments,
)
from shardtune.service.wording import cluster_words


def find_study(client: ServiceClient, study_id: str) -> Study:
    """Return a study by its id, or the newest one for `last`.

    Raises:
        ToolRejected: no study is stored.
    """
    if study_id != "last":
        return client.study(study_id)
    newest = client.studies(at_most=1)
    if not newest:
        raise ToolRejected("study_id ('last'): no study is stored that this key sees; create one with studies_create")
    return newest[0]


def best(product: Product, arguments: BestArguments) -> BestAnswer:
    """Return the best known configuration for a training job."""
    client = product.service("best")
    with rejections(StudyRequest):
        if arguments.target_key is not None:
            return best_answer(client.best_config(arguments.target_key))
        job = (arguments.model, arguments.cluster, arguments.sequence_length, arguments.global_batch)
        model, cluster, length, batch = job
        if model is None or cluster is None or length is None or batch is None:
            names = ("model", "cluster", "sequence_length", "global_batch")
            missing = [name for name, value in zip(names, job, strict=True) if value is None]
            raise ToolRejected(*(f"{name} (missing): add it, or give target_key" for name in missing))
        workload = {
            "sequence_length": length,
            "global_batch": batch,
            "precision": arguments.precision,
            "optimizer": arguments.optimizer,
            "adapter": None if arguments.adapter is None else arguments.adapter.model_dump(mode="json"),
            "data": None if arguments.data is None else arguments.data.model_dump(mode="json"),
            "attention": arguments.attention,
        }
        return best_answer(client.find_best(model, cluster, workload, arguments.match, arguments.lowest_confidence))


def best_answer(known: BestConfig) -> BestAnswer:
    """Return a known configuration with its measured figures."""
    best_config = measured_rows.measured_config(known.best, known.study_id)
    speedup = measured_rows.speedup_figure(known.speedup, known.study_id)
    speed = "" if best_config.speed is None else f", {best_config.speed.in_words()}"
    gain = "" if speedup is None else f", {speedup.in_words()} against {known.baseline.description}"
    return BestAnswer(
        summary=f"{known.description}{speed}; verdict {Verdict(known.verdict).value}{gain}; confidence {known.confidence.level.value}.",
        target_key=known.target_key,
        match=known.match,
        differences={row.field: (row.requested_value, row.known_value) for row in known.differences},
        confidence=known.confidence.level.value,
        reasons=known.confidence.reasons,
        freshness=known.freshness.value,
        trained=measured_rows.trained(known.workload.adapter, known.model),
        samples=measured_rows.samples(known.workload.data),
        study_id=known.study_id,
        measured_at=known.measured_at,
        verdict=Verdict(known.verdict),
        speedup=speedup,
        best=best_config,
        baseline=measured_rows.measured_config(known.baseline, known.study_id),
    )


def compare(product: Product, arguments: CompareArguments) -> CompareAnswer:
    """Compare two to four measured configurations."""
    with rejections(CompareArguments):
        compared = product.service("compare").compare(arguments.picks)
    sides = tuple(map(_side, compared.configs))
    text = "; ".join(f"{side.description}: {side.speed.in_words() if side.speed else 'not measured'}" for side in sides)
    caveat = "" if compared.is_one_subject else " They train different jobs: their speeds are not comparable."
    return CompareAnswer(
        summary=f"{text or 'None of the picks was found'}.{caveat}",
        configurations=sides,
        differences={row.knob: row.values for row in compared.differences},
        is_one_subject=compared.is_one_subject,
        not_found=compared.not_found,
    )


def _side(config: ComparedConfig) -> ComparedSide:
    measured = config.validation or config.search
    kind, band = ("validation", measured_rows.SPREAD) if config.validation else ("search", "95 % interval of the mean")
    source = f"{kind} runs of trial {config.trial_number} of {config.study_id}"
    return ComparedSide(
        description=config.description,
        config=short_config(config.config),
        speed=None
        if measured is None
        else figure(measured.tokens_per_s_per_gpu, SPEED, "measured", source, (measured.low, measured.high), band),
        memory=measured_rows.memory_figure(config.peak_allocated_gib, config.peak_reserved_gib, source),
        trial_number=config.trial_number,
        runs=0 if measured is None else measured.runs,
        study_id=config.study_id,
        model=config.model,
        cluster=cluster_words.cluster(config.cluster),
        step_time=None if config.step_time_s is None else figure(config.step_time_s, "s", "measured", source),
        is_baseline=config.is_baseline,
        speedup=measured_rows.speedup_figure(config.speedup, config.study_id),
    )


def studies_list(product: Product, arguments: StudiesListArguments) -> StudiesListAnswer:
    """List studies, newest first."""
    with rejections(StudiesListArguments):
        studies = product.service("studies_list").studies(arguments.states, arguments.limit)
    rows = tuple(map(measured_rows.listed_study, studies))
    is_open = sum(study.state.is_open for study in studies)
    number = "1 study" if len(rows) == 1 else f"{len(rows)} studies"
    return StudiesListAnswer(summary=f"{number}, {is_open} not ended.", studies=rows)


def studies_status(product: Product, arguments: StudiesStatusArguments) -> StudiesStatusAnswer:
    """Return the progress of a study, and its result once it is complete."""
    with rejections(StudiesStatusArguments):
        study = find_study(product.service("studies_status"), arguments.study_id)
    result = None if study.result is None else measured_rows.outcome(study.result, study.study_id)
    row = measured_rows.listed_study(study)
    next_call = {
        "complete": " Call export for its files, or diagnose for the parts of a step.",
        "waiting": " It waits for a worker with its cluster.",
        "running": " Call again later; the figures so far are not confirmed.",
    }.get(study.state.value, "")
    verdict = "" if result is None else f", verdict {result.verdict.value}"
    fastest = (
        "" if row.best is None or row.best.speed is None else f"; {row.best.description}: {row.best.speed.in_words()}"
    )
    return StudiesStatusAnswer(
        summary=f"{study.study_id} is {study.state.value} ({study.phase.value}){verdict}{fastest}.{next_call}",
        study=row,
        reason=study.reason,
        warnings=study.warnings,
        result=result,
    )


def export(product: Product, arguments: ExportArguments) -> ExportAnswer:
    """Return the files with which a program runs a configuration."""
    client = product.service("export")
    with rejections(ExportArguments):
        study_id = find_study(client, arguments.study_id).study_id
        exported = client.export(study_id, arguments.which, arguments.format)
    lossy = f" Some settings are lost or left to you: see lossy ({len(exported.lossy)})." if exported.lossy else ""
    return ExportAnswer(
        summary=f"{len(exported.files)} files of {study_id} ({arguments.which}): {', '.join(exported.files)}.{lossy}",
        format=exported.format,
        release=exported.release,
        files=exported.files,
        lossy=exported.lossy,
    )

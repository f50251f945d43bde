"""Findings of `explain` on recorded cases: whether the planted mistake is named, and the remedy to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.cases import Case
from benchmarks.diagnosis.record import MODEL_SUMMARY, REMEDY, TRACED, named, rates
from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.diagnosis import Finding, ProfilerRecording
from shardtune.service.cli.explain import trace_files
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial
from shardtune.tuner.search import space


@dataclass(frozen=True)
class ScoredTrial:
    """The findings of one recorded case."""

    case: Case
    seed: int
    seen: tuple[Finding, ...]
    folder: Path

    @property
    def kinds(self) -> list[str]:
        """Kinds of the findings, in their order."""
        return [item.kind for item in self.seen]

    @property
    def right(self) -> Finding | None:
        """Finding that was planted."""
        return next((item for item in self.seen if item.kind == self.case.planted), None)


def score_folder(folder: Path) -> ScoredTrial:
    """Read a case's traces as `explain` does, and leave its remedy's configuration beside them.

    Of the product's own trials it is known what their machine reaches; a job of one's own comes with nothing but its traces.
    """
    name, _, seed = folder.name.rpartition("-")
    case, trial, measured = named(name, int(seed)), None, None
    diagnosis = trace_files.read_diagnosis(folder / "traces")
    if (folder / MODEL_SUMMARY).exists():
        model_summary = ModelSummary.model_validate_json((folder / MODEL_SUMMARY).read_text())
        built = space.build(case.workload, case.cluster, model_summary, SpaceLimits())
        trial = TracedTrial(case.config, case.workload, case.cluster, built, lambda _: True)
        recorded = ProfilerRecording.model_validate_json((folder / TRACED).read_text())
        diagnosis = diagnosis.model_copy(update={"recorded": recorded})
        measured = MeasuredHardware.model_validate_json(rates(folder.parent, case.measured_mbit).read_text())
    scored_trial = ScoredTrial(case, int(seed), explain.explain(diagnosis, trial, measured).findings, folder)
    knobs = scored_trial.right.knobs if scored_trial.right is not None else {}
    if trial is not None and knobs and (changed := trial.with_knobs(knobs)) is not None:
        (folder / REMEDY).write_text(changed.model_dump_json())
    return scored_trial


def summary(all_told: list[ScoredTrial], gains: dict[Path, list[float]]) -> dict[str, Any]:
    """The answer of the benchmark: by case, and of the healthy ones all together."""
    planted: dict[str, list[ScoredTrial]] = {}
    for item in all_told:
        if item.case.planted is not None:
            planted.setdefault(item.case.name, []).append(item)
    healthy = [item for item in all_told if item.case.planted is None]
    alarms = [{"case": f"{item.case.name}-{item.seed}", "named": item.kinds} for item in healthy if item.seen]
    return {
        "planted": [_row(name, some, gains) for name, some in planted.items()],
        "healthy": {"runs": len(healthy), "false_alarms": len(alarms), "which": alarms},
    }


def _row(name: str, some: list[ScoredTrial], gains: dict[Path, list[float]]) -> dict[str, Any]:
    ratios = [sorted(gains[item.folder]) for item in some if gains.get(item.folder)]
    medians = sorted(ratio[len(ratio) // 2] for ratio in ratios)
    remedy = {"runs": len(medians), "helped": sum(median > 1 for median in medians)}
    return {
        "case": name,
        "kind": some[0].case.planted,
        "named": sum(item.right is not None for item in some),
        "first_two": sum(item.case.planted in item.kinds[:2] for item in some),
        "of": len(some),
        "said": [item.kinds for item in some],
        "remedy": remedy | ({"gain": round(medians[len(medians) // 2], 3)} if medians else {}),
    }

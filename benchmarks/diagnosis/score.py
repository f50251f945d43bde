"""What `explain` says of recorded cases: the planted mistake named or not, and the remedy to be run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.cases import Case
from benchmarks.diagnosis.record import MODEL_SUMMARY, REMEDY, TRACED, named, rates
from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.diagnosis import Finding, Traced
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
        """In their order."""
        return [one.kind for one in self.seen]

    @property
    def right(self) -> Finding | None:
        """The one that was planted."""
        return next((one for one in self.seen if one.kind == self.case.planted), None)


def score_folder(folder: Path) -> ScoredTrial:
    """Read a case's traces as `explain` does, and leave its remedy's configuration beside them.

    Of the product's own trials it is known what their machine reaches; a job of one's own comes with nothing but its traces.
    """
    name, _, seed = folder.name.rpartition("-")
    case, trial, measured = named(name, int(seed)), None, None
    found = trace_files.diagnosis_of(folder / "traces")
    if (folder / MODEL_SUMMARY).exists():
        model_summary = ModelSummary.model_validate_json((folder / MODEL_SUMMARY).read_text())
        built = space.build(case.workload, case.cluster, model_summary, SpaceLimits())
        trial = TracedTrial(case.config, case.workload, case.cluster, built, lambda _: True)
        recorded = Traced.model_validate_json((folder / TRACED).read_text())
        found = found.model_copy(update={"recorded": recorded})
        measured = MeasuredHardware.model_validate_json(rates(folder.parent, case.measured_mbit).read_text())
    one = ScoredTrial(case, int(seed), explain.explained(found, trial, measured).findings, folder)
    knobs = one.right.knobs if one.right is not None else {}
    if trial is not None and knobs and (changed := trial.with_knobs(knobs)) is not None:
        (folder / REMEDY).write_text(changed.model_dump_json())
    return one


def summary(all_told: list[ScoredTrial], gains: dict[Path, list[float]]) -> dict[str, Any]:
    """The answer of the benchmark: by case, and of the healthy ones all together."""
    planted: dict[str, list[ScoredTrial]] = {}
    for one in all_told:
        if one.case.planted is not None:
            planted.setdefault(one.case.name, []).append(one)
    healthy = [one for one in all_told if one.case.planted is None]
    alarms = [{"case": f"{one.case.name}-{one.seed}", "named": one.kinds} for one in healthy if one.seen]
    return {
        "planted": [_row(name, some, gains) for name, some in planted.items()],
        "healthy": {"runs": len(healthy), "false_alarms": len(alarms), "which": alarms},
    }


def _row(name: str, some: list[ScoredTrial], gains: dict[Path, list[float]]) -> dict[str, Any]:
    ratios = [sorted(gains[one.folder]) for one in some if gains.get(one.folder)]
    medians = sorted(one[len(one) // 2] for one in ratios)
    remedy = {"runs": len(medians), "helped": sum(one > 1 for one in medians)}
    return {
        "case": name,
        "kind": some[0].case.planted,
        "named": sum(one.right is not None for one in some),
        "first_two": sum(one.case.planted in one.kinds[:2] for one in some),
        "of": len(some),
        "said": [one.kinds for one in some],
        "remedy": remedy | ({"gain": round(medians[len(medians) // 2], 3)} if medians else {}),
    }

"""Explanation of a trace's diagnosis with the trial that made the trace: findings, and the expected time of each part
of a step."""

from typing import Any

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding
from shardtune.tuner.diagnosis import largest_part, traced_samples
from shardtune.tuner.diagnosis.expected_parts import expected_parts
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.find import find_all
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial


def explain(diagnosis: Diagnosis, trial: TracedTrial | None, measured: MeasuredHardware | None) -> Diagnosis:
    """Complete a diagnosis of a trace with findings, and with the expected seconds of each part of a step. A finding's
    remedy must be in the trial's search space and pass the memory gate (be predicted to fit).

    `measured`: measured rates of the trial's machine, where known.
    """
    if trial is None:
        return _with_findings(diagnosis, find_all(diagnosis))
    link = None if measured is None else measured.fastest_link_bytes_per_s(trial.cluster.world_size)
    speed = None if trial.predict is None else trial.predict(trial.config).speed
    explained = _with_findings(diagnosis, find_all(diagnosis, trial, link))
    update: dict[str, Any] = {"expected": () if speed is None else expected_parts(diagnosis, speed)}
    # The findings stay: a disturbed trace still shows sizes and counts, only its fractions are off.
    disturbed = Facts(diagnosis, trial).disturbed
    notes = (traced_samples.note(diagnosis, trial.workload), disturbed and _disturbance_note(disturbed))
    return explained.model_copy(update=update | {"notes": (*explained.notes, *filter(None, notes))})


def _with_findings(diagnosis: Diagnosis, findings: tuple[Finding, ...]) -> Diagnosis:
    """Add findings to a diagnosis, and a note if none of them explains the largest part of the step."""
    note = largest_part.note(diagnosis, findings)
    notes = diagnosis.notes if note is None else (*diagnosis.notes, note)
    return diagnosis.model_copy(update={"findings": findings, "notes": notes})


def _disturbance_note(disturbed: str) -> str:
    return (
        f"{disturbed} while this was recorded: fractions are inaccurate, and late ranks cannot be identified; "
        "record it again"
    )

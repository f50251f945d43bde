"""What is known of the trial that left the traces, put beside what they show: findings, and what each part was expected to take."""

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.tuner.diagnosis.expected_parts import expected_parts
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.find import findings
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial


def explained(found: Diagnosis, trial: TracedTrial | None, measured: MeasuredHardware | None) -> Diagnosis:
    """With remedies that the trial's space and the memory gate admit; `measured`: what its machine reaches, where that is known."""
    if trial is None:
        return found.model_copy(update={"findings": findings(found)})
    link = None if measured is None else measured.fastest_link_bytes_per_s(trial.cluster.world_size)
    speed = None if trial.predict is None else trial.predict(trial.config).speed
    told = {"findings": findings(found, trial, link), "expected": () if speed is None else expected_parts(found, speed)}
    disturbed = Facts(found, trial).disturbed
    return found.model_copy(update=told | ({} if disturbed is None else {"notes": (*found.notes, _off_by(disturbed))}))


def _off_by(disturbed: str) -> str:
    return (
        f"{disturbed} while this was recorded: shares are off by that, and whether a rank is late cannot be told; "
        "run it again"
    )

"""Text output of the worker's commands for people: one line per figure, with its unit."""

from collections.abc import Sequence

from shardtune.api_schemas import formatting
from shardtune.api_schemas.machines.hardware import HardwareReport
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.native_dtypes import flops_per_s
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, compilation_details
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement

Rows = list[tuple[str, str]]


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Format pairs of names and values as a text table of two columns."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def outcome(
    result: Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | RehearsalReport | Failure,
) -> str:
    """Format the result of the command `run-trial` for people. The traceback of a failure is not repeated, as it was
    printed before with the rank's log."""
    match result:
        case Measurement():
            return table(_measured(result))
        case Failure():
            rank_row = [("rank", str(result.rank))] if result.rank is not None else []
            return table([("failed", result.kind.value), ("why", result.message), *rank_row])
        case _:
            values = result.model_dump(mode="json", exclude={"blocks", "losses", "uninterrupted", "resumed"})
            return table([(name.replace("_", " "), str(value)) for name, value in values.items() if value is not None])


def _measured(run: Measurement) -> Rows:
    half = run.step_time_half_width_s / run.step_time_s
    rows = [
        ("speed", f"{formatting.rate(run.tokens_per_s_per_gpu)} tokens/s/GPU"),
        ("step", f"{1000 * run.step_time_s:,.1f} ms ±{half:.1%} (95 % interval, {run.measured_steps} steps timed)"),
    ]
    if run.mfu is not None:
        rows.append(("MFU", f"{run.mfu:.1%}"))
    peaks = ((run.memory.peak_allocated_gib, "allocated"), (run.memory.peak_reserved_gib, "reserved"))
    known_peaks = [f"{formatting.memory(gib)} {kind}" for gib, kind in peaks if gib is not None]
    rows.append(("peak memory", ", ".join(known_peaks) or "not measured"))
    if run.losses:
        rows.append(("loss", f"{run.losses[0]:.4f} to {run.losses[-1]:.4f} over {len(run.losses)} steps"))
    if run.skipped_steps:
        rows.append(("skipped", f"{run.skipped_steps} steps overflowed float16 and were trained again, untimed"))
    if run.compiled is not None:
        rows.append(
            (
                "compiled",
                f"{formatting.counted(run.compiled.frames, 'function')}, {compilation_details(run.compiled)}",
            )
        )
    started = f", {run.startup_s:.1f} s before the first step" if run.startup_s is not None else ""
    rows.append(("took", f"{run.elapsed_s:.1f} s{started}"))
    if run.conditions is not None and run.conditions.foreign_cpu_cores is not None:
        rows.append(("meanwhile", f"other programs kept {run.conditions.foreign_cpu_cores:.1f} cores busy"))
    if run.suspect is not None:
        rows.append(("suspect", run.suspect))
    return rows


def hardware(report: HardwareReport) -> str:
    """Format the report of `measure-hardware`."""
    measured, cluster = report.measured, report.cluster
    rows = [
        ("machine", f"{cluster.gpus_per_node} × {report.fingerprint.gpu} ({report.fingerprint.cpu})"),
        (
            "memory",
            f"{formatting.memory(cluster.memory_gib)} each, {formatting.memory(cluster.host_memory_gib)} of the host",
        ),
        *((f"{dtype} products", flops_per_s(rate)) for dtype, rate in measured.matmul_flops.items()),
        ("copies", f"{measured.copy_bytes_per_s / 1e9:,.1f} GB/s"),
        ("one operator", f"{1e6 * measured.launch_s:,.0f} µs"),
    ]
    if measured.host_link_bytes_per_s is not None:
        rows.append(("to the host", f"{measured.host_link_bytes_per_s / 1e9:,.1f} GB/s"))
    rows += [
        (timing.operation.replace("_", " "), f"{timing.bytes / 2**20:,.2f} MiB in {1e3 * timing.seconds:,.2f} ms")
        for timing in measured.collectives
    ]
    return table(rows)

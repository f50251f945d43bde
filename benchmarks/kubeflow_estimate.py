"""Hold kubeflow-mcp's `estimate_resources` and our memory prediction against published measurements.

`python -m benchmarks.kubeflow_estimate CHECKOUT [--rows]`: CHECKOUT is a folder with the files of kubeflow/mcp-server.
Its own function runs; only its look-up of a model on the Hugging Face Hub is replaced, by the row's parameter count.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from benchmarks.predictor.figures import Scored, mark_contradictions
from benchmarks.predictor.rows import Case, Skipped, hardware_aliases, read
from benchmarks.predictor.scores import DATA, predict
from shardtune.api_schemas.base import GIB

FULL_TRAINING = 5.0
"""Middle of its comment "Full fine-tuning needs 4-6x more (gradients + optimizer states)": it estimates LoRA alone."""
_QUANTIZATIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "fp16": "fp16", "fp32": "fp32"}
Estimate = Callable[[Case], float]


@dataclass(frozen=True)
class Row:
    """One published run with both answers; memory in GiB of one GPU."""

    ours: Scored
    theirs: float
    """Its `gpu_memory_required` as it answers, for LoRA."""

    @property
    def case(self) -> Case:
        """The run."""
        return self.ours.case

    @property
    def measured(self) -> float | None:
        """Measured peak; None where the run ended out of memory."""
        return None if self.case.crashed else self.ours.measured_gib

    @property
    def their_full(self) -> float:
        """Its answer for LoRA times the factor of its comment for training all weights, as these runs do."""
        return self.theirs * FULL_TRAINING


def load_estimate(checkout: Path) -> Estimate:
    """Their function as one from a row to GiB of one GPU.

    Raises:
        FileNotFoundError: the folder is no checkout of kubeflow/mcp-server.
    """
    if not (checkout / "kubeflow_mcp/trainer/api/planning.py").is_file():
        raise FileNotFoundError(f"checkout ({checkout}) has no kubeflow_mcp/trainer/api/planning.py")
    # Packages without their __init__: those import FastMCP and Kubernetes' client, which planning.py does not need.
    for name in ("kubeflow_mcp", "kubeflow_mcp.common", "kubeflow_mcp.trainer", "kubeflow_mcp.trainer.api"):
        package = ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    planning: Any = importlib.import_module("kubeflow_mcp.trainer.api.planning")

    def estimate(case: Case) -> float:
        row = case.row
        planning._get_model_info_from_hf = lambda _: {"params": case.shape.parameters}
        answer = planning.estimate_resources(
            model=f"published/{row['id']}",
            num_workers=min(100, int(row["n_gpus"])),
            batch_size=int(row["micro_batch"]),
            quantization=_QUANTIZATIONS.get(row["precision"], "bf16"),
        )
        return float(answer["data"]["gpu_memory_required"].removesuffix("GB")) * 1e9 / GIB

    return estimate


def rows_of(path: Path, estimate: Estimate) -> Iterator[Row]:
    """Rows with a measured memory, and rows that ended out of memory."""
    aliases = hardware_aliases(DATA / "hardware.csv")
    with path.open(newline="") as lines:
        for line in DictReader(lines):
            try:
                case = read(line, aliases)
            except Skipped:
                continue
            scored = predict(case)
            # A source that does not say which kind of memory it states can be compared with nothing.
            if "oom" in case.crashed or None not in (scored.measured_gib, scored.predicted_gib):
                yield Row(scored, estimate(case))


def errors(rows: Iterable[Row], answer: Callable[[Row], float | None]) -> list[float]:
    """Relative errors of the runs with a measured memory: answered over measured, less 1."""
    pairs = [(row.measured, answer(row)) for row in rows]
    return [given / measured - 1 for measured, given in pairs if measured is not None and given is not None]


def wrongly_fitting(rows: Iterable[Row], fits: Callable[[Row], bool]) -> tuple[int, int]:
    """Number of runs that ended out of memory and were said to fit, and number of runs that ended so."""
    crashed = [row for row in rows if row.case.crashed]
    return sum(map(fits, crashed)), len(crashed)


def wrongly_rejected(rows: Iterable[Row], fits: Callable[[Row], bool]) -> tuple[int, int]:
    """Number of runs that ran and were said not to fit, and number of runs that ran."""
    ran = [row for row in rows if not row.case.crashed]
    return sum(not fits(row) for row in ran), len(ran)


def summary(rows: list[Row]) -> Iterator[str]:
    """Lines of a table: each answer's errors and wrong verdicts."""
    answers: tuple[tuple[str, Callable[[Row], float | None], Callable[[Row], bool]], ...] = (
        ("Shardtune", lambda row: row.ours.predicted_gib, lambda row: row.ours.fits is not False),
        ("estimate_resources", lambda row: row.theirs, lambda row: row.theirs <= (row.case.gpu.memory_gib or 0)),
        (f"the same × {FULL_TRAINING:g}", lambda row: row.their_full, lambda row: row.their_full <= (row.case.gpu.memory_gib or 0)),
    )  # fmt: skip
    yield "| answer | rows | median error | within 20 % | said to fit, out of memory | said not to fit, ran |"
    yield "|---|---|---|---|---|---|"
    for name, answer, fits in answers:
        found = [abs(error) for error in errors(rows, answer)]
        within = sum(error <= 0.2 for error in found) / len(found)
        crashed, ran = wrongly_fitting(rows, fits), wrongly_rejected(rows, fits)
        verdicts = f"{crashed[0]} of {crashed[1]} | {ran[0]} of {ran[1]}"
        yield f"| {name} | {len(found)} | {median(found):.1%} | {within:.0%} | {verdicts} |"


def table(rows: list[Row]) -> Iterator[str]:
    """One line for each run with a measured memory."""
    yield "| run | backend, GPUs | length × micro batch, checkpointing | measured | Shardtune | estimate_resources | × 5 |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        if row.measured is not None:
            at = row.case.row
            where = f"{at['backend']}, {at['n_gpus']} × {at['gpu']}"
            what = f"{at['seq_len']} × {at['micro_batch']}, {at['act_ckpt']}"
            figures = f"{row.measured:.1f} | {row.ours.predicted_gib:.1f} | {row.theirs:.1f} | {row.their_full:.1f}"
            yield f"| {at['model_name']} ({at['id']}) | {where} | {what} | {figures} |"


def main(arguments: list[str] | None = None) -> int:
    """Print the summary, and with `--rows` the runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubeflow_estimate", description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder with the files of kubeflow/mcp-server")
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA / "published.csv", DATA / "nanotron_dp.csv"])
    parser.add_argument("--rows", action="store_true", help="print each run too")
    options = parser.parse_args(arguments)
    try:
        estimate = load_estimate(options.checkout)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    rows = [row for path in options.data for row in rows_of(path, estimate)]
    mark_contradictions([row.ours for row in rows if not row.case.crashed])
    print("Without runs that contradict another of the same columns, as `benchmarks.predictor` counts:\n")
    print("\n".join(summary([row for row in rows if row.ours.contradicts is None])))
    print("\nAll of them:\n")
    print("\n".join(summary(rows)))
    if options.rows:
        print("\n".join(["", *table(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

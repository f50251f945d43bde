"""Groups of published rows: one configuration on several numbers of GPUs."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.parallel import twins
from benchmarks.parallel.layout import Layout, Training
from benchmarks.parallel.prediction import candidate_rows
from benchmarks.parallel.tables import Measured
from benchmarks.predictor.figures import slower_with_larger_batches
from benchmarks.predictor.rows import Case, Skipped, hardware_aliases, read
from benchmarks.predictor.scores import predict
from shardtune.tuner.projection.sizes import MeasuredSize, predict_sizes

SWEEP = "vinjn/nanotron-ultrascale-playbook (sweep)"
"""Source of every file in the format of `nanotron_sweep.csv`, which does not name one."""
DATA = Path(__file__).parents[1] / "data"
SAME = (
    "source", "model_name", "gpu", "backend", "seq_len", "act_ckpt", "precision", "compile", "micro_batch", "offload",
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One configuration of one source on several numbers of GPUs, the smallest first, with one size for each number."""

    source: str
    name: str
    sizes: tuple[MeasuredSize, ...]

    @property
    def lost(self) -> float:
        """Fraction of its speed per GPU that the configuration loses from the smallest to the largest size."""
        return 1.0 - self.sizes[-1].tokens_per_s_per_gpu / self.sizes[0].tokens_per_s_per_gpu


@dataclass(frozen=True)
class Row:
    """One published row: what was measured, and how often it accumulates."""

    measured: MeasuredSize
    accumulation: int


def published(path: Path, hardware: Path = DATA / "hardware.csv") -> list[Group]:
    """Groups of a file in the format of `published.csv`.

    Raises:
        Misread: an optional column holds an unknown word.
        KeyError: a column is missing.
    """
    rows: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for case in uncontradicted(path, hardware):
        row = Row(measured_case(case), round(case.candidate["accumulation"]))
        for family in shard_families(case):
            rows[(*(case.row[name] for name in SAME), str(case.implementation), family)].append(row)
    groups = (_group(key[0], ", ".join((*key[1:10], key[-1])), listed) for key, listed in rows.items())
    return _distinct(group for group in groups if group is not None)


def uncontradicted(path: Path, hardware: Path) -> list[Case]:
    """Rows of a file that state a speed, without those that a smaller micro batch of the same job shows to be slowed by
    something that no column states."""
    aliases = hardware_aliases(hardware)
    scored = []
    with path.open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            try:
                case = read(line, aliases)
            except Skipped:
                continue
            if not case.crashed and line["tokens_per_s_per_gpu"]:
                scored.append(predict(case))
    slowed = {large for large, _ in slower_with_larger_batches(scored)}
    return [row.case for row in scored if row.id not in slowed]


def measured_case(case: Case) -> MeasuredSize:
    line = case.row
    facts = (case.dtypes, case.implementation, case.rates, case.network)
    (size,) = predict_sizes(case.shape, [case.candidate], *facts)
    gib = float(line["peak_mem_gib"]) if line["peak_mem_gib"] and line["mem_kind"] in ("allocated", "active") else None
    return MeasuredSize.at_speed(size, float(line["tokens_per_s_per_gpu"]), gib)


def shard_families(case: Case) -> Sequence[str]:
    """Names of the ways in which a row's shard group can grow; a group of all ranks within a node can do either."""
    shard, everywhere = round(case.candidate["shard"]), case.candidate["replicate"] <= 1
    if shard <= 1:
        return ("replicated",)
    fixed = f"shards of {shard}"
    if not everywhere:
        return (fixed,)
    return ("sharded over all", fixed) if shard <= case.network.gpus_per_node else ("sharded over all",)


def _group(source: str, name: str, rows: Sequence[Row]) -> Group | None:
    """One size for each number of GPUs: of rows that accumulate as often as the smallest, the median; else the first."""
    by_gpus: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_gpus[row.measured.predicted.gpus].append(row)
    if len(by_gpus) < 2:
        return None
    first = by_gpus[min(by_gpus)][0].accumulation
    sizes = []
    for _, listed in sorted(by_gpus.items()):
        alike = [row for row in listed if row.accumulation == first] or listed[:1]
        speed = median(row.measured.tokens_per_s_per_gpu for row in alike)
        first_row = alike[0].measured
        sizes.append(MeasuredSize.at_speed(first_row.predicted, speed, first_row.memory_gib))
    return Group(source, name, tuple(sizes))


def _distinct(groups: Iterable[Group]) -> list[Group]:
    """Groups without those whose rows are all in a larger one."""
    kept: list[Group] = []
    for group in sorted(groups, key=lambda group: -len(group.sizes)):
        speeds = {(size.predicted.gpus, size.seconds) for size in group.sizes}
        if not any(speeds <= {(size.predicted.gpus, size.seconds) for size in other.sizes} for other in kept):
            kept.append(group)
    return kept


def swept(tables: Iterable[Sequence[Measured]]) -> list[Group]:
    """Groups of the tables of a sweep; only rows whose twin agrees, since a run that its nodes slowed down shows nothing
    of scaling."""
    rows: dict[tuple[Training, Layout], list[MeasuredSize]] = defaultdict(list)
    for table in tables:
        for row in agreeing_rows(table):
            rows[(row.training, replace(row.layout, dp=1))].append(measured(row))
    return [
        Group(SWEEP, f"{training.shape.name}, {layout}", tuple(sorted(sizes, key=lambda size: size.predicted.gpus)))
        for (training, layout), sizes in rows.items()
        if len({size.predicted.gpus for size in sizes}) > 1
    ]


def agreeing_rows(table: Sequence[Measured]) -> list[Measured]:
    """Rows of a table that ran and whose twin, with ZeRO-0 for ZeRO-1, took as long within 10 %."""
    return [table[position] for pair in twins.find(table) if pair.agree for position in pair.positions]


def measured(row: Measured) -> MeasuredSize:
    """Row of a sweep with its prediction."""
    training = row.training
    facts = (training.program.dtypes, training.program.implementation, training.rates, training.network)
    (size,) = predict_sizes(training.shape, candidate_rows(training, [row.layout]), *facts)
    return MeasuredSize(size, row.seconds or 0.0)

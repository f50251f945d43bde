"""`shardtune predict`: predict memory and speed of configurations without a trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.service.cli.lazy_module import LazyModule, load_numpy, without_collections
from shardtune.service.cli.options import (
    AllowModel,
    AsJson,
    DataFile,
    DoraRank,
    GlobalBatch,
    LastLayersCount,
    LayoutName,
    LeafNodes,
    LeafOversubscription,
    LoraRank,
    PlainModel,
    PrecisionName,
    QloraRank,
    SequenceLength,
    StateDir,
    adapter_options,
)

if TYPE_CHECKING:
    from shardtune.service.cli import lengths_file
    from shardtune.service.cli.predict import lines, measured_hardware, model_argument, predictor
else:
    lengths_file = LazyModule("shardtune.service.cli.lengths_file")
    lines = LazyModule("shardtune.service.cli.predict.lines")
    measured_hardware = LazyModule("shardtune.service.cli.predict.measured_hardware")
    model_argument = LazyModule("shardtune.service.cli.predict.model_argument")
    predictor = LazyModule("shardtune.service.cli.predict.predictor")

app = typer.Typer()


ClusterName = Annotated[
    str | None,
    typer.Option(
        help="Nodes × GPUs per node × model, such as 8xh100 or 4x8xa100-80gb; `local` for this machine (default: the study's, or local)."
    ),
]
MicroBatch = Annotated[int, typer.Option(min=1, help="Samples per forward pass and GPU.")]
GradientAccumulation = Annotated[
    int | None, typer.Option(min=1, help="Micro batches per step (default: as many as the global batch takes).")
]
Checkpointing = Annotated[
    str, typer.Option(help="Activation checkpointing of the table of strategies: none, selective or full.")
]
OptimizerKind = Annotated[
    str | None,
    typer.Option(help=f"Optimizer: {', '.join(OPTIMIZERS)} (default: the study's, or {DEFAULT_OPTIMIZER})."),
]
Float8Scaling = Annotated[
    str | None,
    typer.Option(
        help="Scaling with which linear layers multiply in float8: tensorwise or rowwise (default: the study's, or none)."
    ),
]
Top = Annotated[int, typer.Option(min=0, max=100, help="Maximum number of the fastest configurations to print.")]
IsTraced = Annotated[
    bool, typer.Option("--trace", help="Count the built model even where its architecture has a closed form.")
]
HardwareFile = Annotated[
    Path | None, typer.Option(help="Output file of `measure-hardware --json`, of this machine or another.")
]


@app.command("predict")
def command(
    model: PlainModel,
    cluster: ClusterName = None,
    seq_len: SequenceLength = None,
    micro_batch: MicroBatch = 1,
    gradient_accumulation: GradientAccumulation = None,
    checkpointing: Checkpointing = "none",
    precision: PrecisionName = None,
    optimizer: OptimizerKind = None,
    float8: Float8Scaling = None,
    lora: LoraRank = None,
    qlora: QloraRank = None,
    dora: DoraRank = None,
    last_layers: LastLayersCount = None,
    data: DataFile = None,
    layout: LayoutName = None,
    global_batch: GlobalBatch = None,
    top: Top = 10,
    trace: IsTraced = False,
    allow_model: AllowModel = None,
    hardware: HardwareFile = None,
    nodes_per_leaf: LeafNodes = None,
    oversubscription: LeafOversubscription = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Predict the fastest configurations that fit, and memory and speed of each strategy, without running a trial."""
    adapter, subject = adapter_options(lora, last_layers, qlora, dora), model_argument.read_model(model)
    # Before the machine's rates: measuring them for a minute would mend no wrong file.
    lengths = lengths_file.option_values(data, layout)
    cluster_name: Cluster | str = subject.cluster if cluster is None and hardware is None else cluster or "local"
    report = measured_hardware.hardware_report(cluster_name, hardware, state_dir)
    options = predictor.PredictOptions(
        subject,
        cluster_name,
        seq_len,
        micro_batch,
        gradient_accumulation,
        precision,
        report,
        global_batch,
        top,
        trace,
        optimizer,
        checkpointing,
        adapter,
        lengths,
        float8,
        tuple(allow_model or ()),
        nodes_per_leaf,
        oversubscription,
    )
    # The process ends with the answer, and collections would take a sixth of its time.
    with without_collections():
        load_numpy()
        table = predictor.predict(options)
        if as_json:
            print(table.model_dump_json())
        else:
            lines.show(table)

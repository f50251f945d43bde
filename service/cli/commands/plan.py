"""`shardtune plan`: hours, money and finish date of a training run, by kind and number of GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardtune.service.cli.lazy_module import LazyModule, load_numpy
from shardtune.service.cli.options import (
    AsJson,
    KeyFile,
    LeafNodes,
    LeafOversubscription,
    PlainModel,
    PrecisionName,
    SequenceLength,
    Service,
    StateDir,
    stated_workload,
)

if TYPE_CHECKING:
    from shardtune.service.cli.plan import epochs as run_tokens
    from shardtune.service.cli.plan import lines, options, planner, stored_study
    from shardtune.service.cli.predict import model_argument
else:
    run_tokens = LazyModule("shardtune.service.cli.plan.epochs")
    lines = LazyModule("shardtune.service.cli.plan.lines")
    options = LazyModule("shardtune.service.cli.plan.options")
    planner = LazyModule("shardtune.service.cli.plan.planner")
    stored_study = LazyModule("shardtune.service.cli.plan.stored_study")
    model_argument = LazyModule("shardtune.service.cli.predict.model_argument")

app = typer.Typer()


Tokens = Annotated[float | None, typer.Option(help="Tokens that the run trains on, such as 300e9.")]
SampleFile = Annotated[
    Path | None, typer.Option("--data", help="JSONL file of sample lengths; with --epochs, in place of --tokens.")
]
Epochs = Annotated[float | None, typer.Option(help="Number of times that the run trains on the samples of --data.")]
Gpus = Annotated[str, typer.Option(help="Kinds of GPUs by their names in the catalogue, such as h100,h200,mi300x.")]
Counts = Annotated[str, typer.Option(help="Numbers of GPUs: 8..1024 doubles from 8, 64,96 lists them.")]
GpusPerNode = Annotated[int, typer.Option(min=1, max=72, help="GPUs of a node.")]
Network = Annotated[
    str | None,
    typer.Option(
        help="Network between nodes: infiniband-hdr, infiniband-ndr, infiniband-xdr, roce-400, efa-p5 or tcp-100 "
        "(default: the usual one of each kind)."
    ),
]
Prices = Annotated[
    str | None, typer.Option(help="Price of a GPU-hour by kind, in your currency, such as h100=2.10,h200=2.60.")
]
PriceSource = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|sky",
        help="JSON file of such prices by kind; or sky for the lowest of SkyPilot's catalogue, sky:lambda for one cloud.",
    ),
]
Spot = Annotated[bool, typer.Option("--spot", help="Take the prices of spot instances, with --prices sky.")]
Currency = Annotated[str | None, typer.Option(help="Currency of the prices and the budget, such as USD.")]
Money = Annotated[float | None, typer.Option(help="Money that the run may cost.")]
FirstDay = Annotated[
    str | None, typer.Option(metavar="DAY", help="First day (UTC) of the run (default: it starts now).")
]
LastDay = Annotated[str | None, typer.Option(metavar="DAY", help="Last day on which the run may end.")]
BatchOfRun = Annotated[
    int | None, typer.Option(min=1, help="Samples per step (default: the study's, or by the run's FLOPs).")
]
Overhead = Annotated[
    float, typer.Option(min=0, max=5, help="Time for evaluation, data and pauses, as a fraction of step time.")
]
FailureRate = Annotated[
    float, typer.Option(min=0, max=1, help="Failures that end the job, per GPU and hour (default: Llama 3's).")
]
CheckpointSeconds = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds for which a checkpoint stops training (default: those of --study, else 60)."),
]
CheckpointInterval = Annotated[
    float | None, typer.Option(min=1, help="Seconds between checkpoints (default: what loses least).")
]
RestartSeconds = Annotated[
    float,
    typer.Option(min=0, help="Seconds from a failure to the next step; with --study, without loading the checkpoint."),
]
MeasuredStudy = Annotated[
    str | None,
    typer.Option(
        help="Id of a stored study of this model, or last: rows are measured or projected by it where it has an answer, "
        "and its resume check gives the times of checkpoints."
    ),
]
Measurements = Annotated[
    Path | None,
    typer.Option(help="JSON list of measurements on a few GPUs, from which larger sizes are projected."),
]


@app.command("plan")
def command(
    model: PlainModel,
    gpus: Gpus,
    tokens: Tokens = None,
    data: SampleFile = None,
    epochs: Epochs = None,
    counts: Counts = "8..1024",
    gpus_per_node: GpusPerNode = 8,
    network: Network = None,
    nodes_per_leaf: LeafNodes = None,
    oversubscription: LeafOversubscription = None,
    price: Prices = None,
    prices: PriceSource = None,
    spot: Spot = False,
    currency: Currency = None,
    budget: Money = None,
    start: FirstDay = None,
    deadline: LastDay = None,
    seq_len: SequenceLength = None,
    global_batch: BatchOfRun = None,
    precision: PrecisionName = None,
    overhead: Overhead = 0.15,
    failure_rate: FailureRate = 2e-5,
    checkpoint_seconds: CheckpointSeconds = None,
    checkpoint_interval: CheckpointInterval = None,
    restart_seconds: RestartSeconds = 600,
    study: MeasuredStudy = None,
    measured: Measurements = None,
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Plan a training run: hours, money and finish date by kind and number of GPUs, without running anything."""
    run = run_tokens.read_tokens(tokens, data, epochs)
    kinds = [name.strip() for name in gpus.split(",") if name.strip()]
    stated = options.read_prices(options.PriceOptions(price, prices, currency, spot), kinds, gpus_per_node)
    values: dict[str, Any] = planner.plannable_values(model_argument.read_model(model).values)
    values |= stated_workload(seq_len, global_batch, precision) | {
        "tokens": run.tokens,
        "gpus": kinds,
        "counts": options.read_counts(counts),
        "gpus_per_node": gpus_per_node,
        "network": network,
        "nodes_per_leaf": nodes_per_leaf,
        "oversubscription": oversubscription,
        "prices": stated.prices,
        "currency": stated.currency,
        "budget": budget,
        "start": planner.read_day(start, "--start"),
        "deadline": planner.read_day(deadline, "--deadline"),
        "measurements": options.read_measurements(measured),
    }
    # Last: without --service, a service starts on the state directory for seconds.
    stored = stored_study.read_study(stored_study.StudyOptions(study, service, key_file, state_dir))
    values["goodput"] = {
        "overhead": overhead,
        "failures_per_gpu_hour": failure_rate,
        "checkpoint_interval_s": checkpoint_interval,
        "restart_s": restart_seconds + stored_study.load_seconds(stored),
    } | ({} if checkpoint_seconds is None else {"checkpoint_s": checkpoint_seconds})
    load_numpy()
    plan = stated.noted(run.checked(planner.make_plan(values, stored)))
    if as_json:
        print(plan.model_dump_json())
    else:
        lines.show(plan)

"""`shardtune tune`: options of the command; `service.cli.tune` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from shardtune.api_schemas.machines.hardware import MOST_MEMORY_GIB
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, MOST_PAIRS, MOST_TRIALS, Budget
from shardtune.api_schemas.studies.targets import MOST_GPUS_OF_NODE
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import (
    AllowModel,
    AllowScript,
    AsJson,
    DataFile,
    DoraRank,
    LastLayersCount,
    LauncherName,
    LayoutName,
    LoraRank,
    Nodes,
    QloraRank,
    StateDir,
    adapter_options,
    launcher_options,
    worker_options,
)
from shardtune.service.cli.tune.options import DEFAULT_OUT, DEFAULT_STATE_DIR, TuneOptions
from shardtune.service.cli.tune.quiet_options import (
    DEFAULT_WAIT_MINUTES,
    WAIT_FOR_QUIET,
    check_wait,
    with_default_minutes,
)

if TYPE_CHECKING:
    from shardtune.service.cli.tune import job
    from shardtune.service.cli.tune import rungs as smaller_sizes
else:
    job = LazyModule("shardtune.service.cli.tune.job")
    smaller_sizes = LazyModule("shardtune.service.cli.tune.rungs")

app = typer.Typer()


class _TuneCommand(TyperCommand):
    """The command `tune`, whose option `--wait-for-quiet` may be given with or without a number of minutes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and insert the default number of minutes if `--wait-for-quiet` has none."""
        return super().parse_args(ctx, with_default_minutes(args))


StudyOrModel = Annotated[
    Path | None,
    typer.Argument(help="Study file, a model's config.json or folder, or its name: a preset or a Hugging Face id."),
]
Ranks = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_GPUS_OF_NODE, help="Number of ranks of a trial (default: all GPUs, or 2 CPU ranks)."),
]
MaxTrials = Annotated[int | None, typer.Option(min=1, max=MOST_TRIALS, help="Number of trials to run.")]
MaxPairs = Annotated[
    int | None,
    typer.Option(
        min=FEWEST_PAIRS,
        max=MOST_PAIRS,
        help=f"Maximum number of paired runs before the verdict may stay undecided ({Budget().max_pairs}).",
    ),
]
RankMemory = Annotated[float | None, typer.Option(help="Memory limit of a CPU rank in GiB.")]
IsResumed = Annotated[bool, typer.Option("--resume", help="Continue the last unfinished study.")]
AddedPairs = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_PAIRS,
        help="Number of paired runs to add to the last study, to decide a verdict that is undecided or too_busy.",
    ),
]
WaitForQuiet = Annotated[
    float | None,
    typer.Option(
        WAIT_FOR_QUIET,
        metavar="[MINUTES]",
        help=f"Wait before runs while other programs use the machine, so many minutes in all ({DEFAULT_WAIT_MINUTES}).",
    ),
]
TargetSize = Annotated[
    str | None,
    typer.Option(
        metavar="NODESxGPUS",
        help="Larger cluster of the same GPUs that the answer is projected to, such as 64x8; the global batch is the target's.",
    ),
]
SmallerSizes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="Smaller numbers of nodes (with --launcher) or ranks to tune on first, such as 1,2; the target is projected from all. Needs --nodes or --ranks.",
    ),
]
IsCostOnly = Annotated[bool, typer.Option("--cost", help="Print what the study should take and gain, and run nothing.")]
OutFolder = Annotated[Path, typer.Option(help="Folder for the files of the recommended configuration.")]


@app.command(cls=_TuneCommand)
def tune(
    study: StudyOrModel = None,
    ranks: Ranks = None,
    max_trials: MaxTrials = None,
    max_pairs: MaxPairs = None,
    memory_gib: RankMemory = None,
    lora: LoraRank = None,
    qlora: QloraRank = None,
    dora: DoraRank = None,
    last_layers: LastLayersCount = None,
    data: DataFile = None,
    layout: LayoutName = None,
    as_json: AsJson = False,
    resume: IsResumed = False,
    add_pairs: AddedPairs = None,
    wait_for_quiet: WaitForQuiet = None,
    target: TargetSize = None,
    rungs: SmallerSizes = None,
    cost: IsCostOnly = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    out: OutFolder = DEFAULT_OUT,
    allow_model: AllowModel = None,
    allow_script: AllowScript = None,
    launcher: LauncherName = None,
    nodes: Nodes = None,
) -> None:
    """Find the fastest configuration on this machine, or over hosts, and write it as ready-to-use files."""
    _check_memory(memory_gib)
    if resume and add_pairs:
        raise InputError("--resume and --add-pairs exclude each other; give --add-pairs for a study that has ended")
    check_wait(wait_for_quiet, resume=resume)
    allowed = worker_options(allow_model, allow_script)
    hosts = launcher_options(launcher, nodes)
    options = TuneOptions(
        study,
        ranks,
        max_trials,
        memory_gib,
        resume,
        state_dir,
        out,
        as_json,
        allowed,
        add_pairs,
        hosts,
        wait_for_quiet_min=wait_for_quiet,
        cost=cost,
        adapter=adapter_options(lora, last_layers, qlora, dora),
        data=data,
        layout=layout,
        target=target,
        max_pairs=max_pairs,
    )
    if rungs is None:
        job.tune(options)
    else:
        smaller_sizes.tune(smaller_sizes.parse(rungs), options)


def _check_memory(memory_gib: float | None) -> None:
    # Checked here: Typer's `min` cannot exclude 0 itself, and lets NaN pass.
    if memory_gib is not None and not 0 < memory_gib <= MOST_MEMORY_GIB:
        raise InputError(
            f"--memory-gib ({memory_gib}) must be above 0 and at most {MOST_MEMORY_GIB:g}; give the GiB that one rank may use"
        )

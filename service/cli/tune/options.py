"""The command line of `tune`, as it was given and as the next one has to be."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path

from shardtune.api_schemas.training.adapters import AdapterSchema, LastLayers, Lora
from shardtune.service.cli.tune.quiet_options import WAIT_FOR_QUIET
from shardtune.service.process.own_command import command_words

DEFAULT_STATE_DIR, DEFAULT_OUT = Path(".shardtune"), Path("best")
OF_EVERY_RUN = frozenset({"ranks", "state_dir", "out", "as_json", "allowed", "hosts"})
"""Names of the options that apply to every run of `tune`: a command that repeats the run contains them, and they may
accompany a stored study."""
_OF_A_STORED_STUDY = frozenset({"resume", "add_pairs"})
"""Names of the options that continue a stored study."""


@dataclass(frozen=True)
class TuneOptions:
    """Command-line options of `tune`."""

    study: Path | None
    ranks: int | None
    max_trials: int | None
    memory_gib: float | None
    resume: bool
    state_dir: Path
    out: Path
    as_json: bool
    allowed: tuple[str, ...] = ()
    """Worker options that allow the user's own models and scripts to run, each option followed by its value."""
    add_pairs: int | None = None
    """Number of additional paired runs for the newest study that has an answer."""
    hosts: tuple[str, ...] = ()
    """Worker options that name other hosts. If empty, only this machine runs trials."""
    study_id: str | None = None
    """Id of the new study. If None, the service chooses one."""
    wait_for_quiet_min: float | None = None
    """Total minutes that the study may wait until the machine is quiet. If None, the study file decides."""

    cost: bool = False
    """Whether to print the estimated time and cost of the study, and run nothing."""
    adapter: AdapterSchema | None = None
    """Adapter that replaces the study file's. If None, the study file decides."""
    data: Path | None = None
    """File with the lengths of the samples, which replace the lengths in the study file. If None, the study file
    decides."""
    layout: str | None = None
    """Layout of samples of several lengths, such as packed. If None, the study file decides."""
    target: str | None = None
    """Larger cluster that the answer is projected to, such as `64x8`. If None, the study file decides."""
    rung: int | None = None
    """Size of the smaller cluster of `--rungs` on which this study runs, in nodes (over hosts) or ranks. If None, the
    study runs on the full cluster."""

    rungs: tuple[int, ...] = ()
    """Sizes of all smaller clusters of `--rungs` on which the study runs before its full size, smallest first. If
    empty, `--rungs` was not given."""
    max_pairs: int | None = None
    """Maximum number of pairs of validation runs; after them, the verdict may remain undecided. If None, the study
    file decides."""

    @property
    def unit(self) -> str:
        """Unit of the sizes that `--rungs` lists: `node` if the study runs on several hosts, else `rank`."""
        return "node" if self.hosts else "rank"

    @property
    def nodes(self) -> int | None:
        """Number of nodes that the command line states; None if it states none."""
        return int(self.hosts[self.hosts.index("--nodes") + 1]) if "--nodes" in self.hosts else None

    def of_a_new_study(self) -> list[tuple[str, object]]:
        """Return the options that only a new study can take, each with its value: all given options except those that
        apply to every run."""
        given = [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name not in OF_EVERY_RUN | _OF_A_STORED_STUDY
        ]
        return [
            self._as_given(name, value) for name, value in given if not (value is None or value is False or value == ())
        ]

    def _as_given(self, name: str, value: object) -> tuple[str, object]:
        """Return an option as the command line spells it, followed by its value."""
        if name == "adapter":
            option, text = self.adapter_words()
            return option, text
        names = {"study": "file", "wait_for_quiet_min": WAIT_FOR_QUIET}
        return names.get(name, f"--{name.replace('_', '-')}"), value

    def again(self, *first: str) -> str:
        """Return a `shardtune tune` command as the user called it, quoted for a shell: the words of `first`, then the options that apply to
        every run, such as `--state-dir`."""
        words = [*command_words(), "tune", *first]
        words += ["--ranks", str(self.ranks)] if self.ranks else []
        words += ["--state-dir", str(self.state_dir)] if self.state_dir != DEFAULT_STATE_DIR else []
        words += ["--out", str(self.out)] if self.out != DEFAULT_OUT else []
        words += ["--json"] if self.as_json else []
        return shlex.join([*words, *self.hosts, *self.allowed])

    def from_the_start(self) -> str:
        """Return the command that creates and runs the study again from its study file."""
        assert self.study is not None, "a continued study is written into a file first"
        words = [str(self.study)]
        words += ["--max-trials", str(self.max_trials)] if self.max_trials else []
        words += ["--max-pairs", str(self.max_pairs)] if self.max_pairs else []
        words += ["--memory-gib", str(self.memory_gib)] if self.memory_gib else []
        words += ["--target", self.target] if self.target else []
        words += ["--rungs", ",".join(map(str, self.rungs))] if self.rungs else []
        words += [*self.adapter_words(), *self.data_words(), *self.wait_words()]
        return self.again(*words)

    def adapter_words(self) -> list[str]:
        """Return the command-line words of the adapter's option, such as `--lora 16`; empty without an adapter."""
        if isinstance(self.adapter, Lora):
            plain = "--dora" if self.adapter.dora else "--lora"
            return [plain if self.adapter.quantization is None else "--qlora", str(self.adapter.rank)]
        return ["--last-layers", str(self.adapter.layers)] if isinstance(self.adapter, LastLayers) else []

    def data_words(self) -> list[str]:
        """Return the command-line words of `--data` and `--layout`; empty without these options."""
        file = [] if self.data is None else ["--data", str(self.data)]
        return file if self.layout is None else [*file, "--layout", self.layout]

    def wait_words(self) -> list[str]:
        """Return the command-line words of `--wait-for-quiet`; empty without this option."""
        return [] if self.wait_for_quiet_min is None else [WAIT_FOR_QUIET, f"{self.wait_for_quiet_min:g}"]

    def after_interrupt(self, *, has_begun: bool) -> tuple[str, str]:
        """Return two lines for an interrupted run: what is kept, and the command that continues the study.

        `has_begun`: whether the service has stored the study, or its additional paired runs.
        """
        kept = f"interrupted; results so far are kept in {self.state_dir}"
        if self.rungs:
            # `--resume` would finish one size; the command itself goes on with all of them.
            return kept, f"continue with: {self.from_the_start()}"
        if has_begun or self.resume:
            return kept, f"continue with: {self.again('--resume')}"
        if self.add_pairs:
            return kept, f"continue with: {self.again('--add-pairs', str(self.add_pairs), *self.wait_words())}"
        not_created = "interrupted before the study was created"
        # `explain --try` runs studies from a temporary file, which is gone: there is no command to print.
        return not_created, f"start again with: {self.from_the_start()}" if self.study_id is None else "start again"

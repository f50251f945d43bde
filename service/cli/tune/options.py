"""The command line of `tune`, as it was given and as the next one has to be."""

import shlex
from dataclasses import dataclass
from pathlib import Path

DEFAULT_STATE_DIR, DEFAULT_OUT = Path(".shardtune"), Path("best")


@dataclass(frozen=True)
class TuneOptions:
    """The command line of `tune`."""

    study: Path | None
    ranks: int | None
    max_trials: int | None
    memory_gib: float | None
    resume: bool
    state_dir: Path
    out: Path
    as_json: bool
    allowed: tuple[str, ...] = ()
    """Options of the worker that allow code of the user's own: each option with its value behind it."""
    add_pairs: int | None = None
    """Of validation runs, for the newest study that has an answer."""
    hosts: tuple[str, ...] = ()
    """Options of the worker that name other hosts; none: this machine."""
    study_id: str | None = None
    """Of the study that is created; the service chooses one without it."""

    def again(self, *first: str) -> str:
        """`shardtune tune` with `first`, and with what a worker and the files need again, as a shell reads it."""
        words = ["shardtune", "tune", *first]
        words += ["--ranks", str(self.ranks)] if self.ranks else []
        words += ["--state-dir", str(self.state_dir)] if self.state_dir != DEFAULT_STATE_DIR else []
        words += ["--out", str(self.out)] if self.out != DEFAULT_OUT else []
        words += ["--json"] if self.as_json else []
        return shlex.join([*words, *self.hosts, *self.allowed])

    def from_the_start(self) -> str:
        """The command that makes a study of the same file; `STUDY.json` stands for it where a stored study went on."""
        words = [str(self.study) if self.study is not None else "STUDY.json"]
        words += ["--max-trials", str(self.max_trials)] if self.max_trials else []
        words += ["--memory-gib", str(self.memory_gib)] if self.memory_gib else []
        return self.again(*words)

    def after_interrupt(self, *, has_begun: bool) -> tuple[str, str]:
        """What is kept, and the command that goes on. `has_begun`: the study is stored, or has taken its pairs."""
        kept = f"interrupted; results so far are kept in {self.state_dir}"
        if has_begun or self.resume:
            return kept, f"go on with: {self.again('--resume')}"
        if self.add_pairs:
            return kept, f"go on with: {self.again('--add-pairs', str(self.add_pairs))}"
        nothing = "interrupted before there was a study"
        # The file of a study that another command names is gone with that command.
        return nothing, f"begin again with: {self.from_the_start()}" if self.study_id is None else "begin again"

"""Tokens of a training run: as stated, or by epochs over a file of sample lengths."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.trials.plans import Plan
from shardtune.service.cli import lengths_file
from shardtune.service.cli.errors import InputError


@dataclass(frozen=True)
class RunTokens:
    """Tokens that a run trains on, and the samples from which they were counted."""

    tokens: float
    data: SampleLengths | None = None
    epochs: float | None = None

    def checked(self, plan: Plan) -> Plan:
        """Return the plan with a note on how its tokens were counted.

        Raises:
            InputError: a sample is longer than a row of the plan.
        """
        if self.data is None or self.epochs is None:
            return plan
        if self.data.longest > plan.sequence_length:
            raise InputError(
                f"data ({counted(self.data.longest, 'token')} in its longest sample) exceeds the sequence length "
                f"({plan.sequence_length}); raise --seq-len, or cut the samples as your training does"
            )
        epochs = f"{self.epochs:g} {'epoch' if self.epochs == 1 else 'epochs'}"
        note = (
            f"{plan.tokens:,.0f} tokens: {epochs} of {counted(self.data.samples, 'sample')} with a mean of "
            f"{self.data.mean:,.0f} tokens, packed into full rows; padding would take longer"
        )
        return plan.model_copy(update={"notes": (note, *plan.notes)})


def read_tokens(tokens: float | None, data: Path | None, epochs: float | None) -> RunTokens:
    """Read the tokens of a run from `--tokens`, or count them by `--data` and `--epochs`.

    Raises:
        InputError: neither or both are given, or one of them is wrong.
    """
    if data is None and epochs is None:
        if tokens is None:
            raise InputError(
                "--tokens (missing) must say how many tokens the run trains on, such as 300e9; or give --data and --epochs"
            )
        return RunTokens(tokens)
    if tokens is not None:
        raise InputError(f"--tokens ({tokens:g}) and --data with --epochs state the tokens twice; leave one out")
    if data is None:
        raise InputError(f"--epochs ({epochs:g}) needs the lengths of the samples; give --data FILE, or --tokens")
    if epochs is None:
        raise InputError(f"--data ({data}) needs the number of epochs; give --epochs, such as --epochs 3")
    if not 0 < epochs <= 1e6 or not math.isfinite(epochs):
        raise InputError(f"--epochs ({epochs:g}) must be above 0 and at most 1000000; correct it")
    lengths: Any = lengths_file.read(data)
    samples = SampleLengths(lengths=lengths)
    return RunTokens(epochs * samples.mean * samples.samples, samples, epochs)

"""Print a rehearsal on a terminal."""

from shardtune.api_schemas.trials.rehearsals import Rehearsal
from shardtune.service.cli.rehearse import words
from shardtune.service.cli.terminal import PrintableConsole


def show(rehearsal: Rehearsal) -> None:
    """Print the result of a rehearsal (a build without GPUs): a summary sentence, the memory of each rehearsed rank,
    and the aspects that a rehearsal leaves out."""
    console = PrintableConsole(highlight=False, soft_wrap=True)
    console.print(f"{rehearsal.description}, global batch {rehearsal.global_batch:,}", style="bold")
    console.print(words.sentence(rehearsal))
    for line in words.details(rehearsal):
        console.print(line)
    for note in rehearsal.notes:
        console.print(f"note: {note}", style="dim")

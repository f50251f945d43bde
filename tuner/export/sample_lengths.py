"""Samples of several lengths in exported files: what each program can say about them, and what it does otherwise."""

from typing import Any

from shardtune.api_schemas.training.padding import FLASH
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.tuner.export.source import ExportSource

_WEIGHTED = "divide the summed loss of a step by all of its labels: a mean of the micro batches' means is another loss"
_BOUNDS = "cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k"
"""Names of arguments that tell flash attention where the samples of a packed row begin and end; transformers 5.23
infers them only for a batch of one row."""


def trainer_values(source: ExportSource) -> dict[str, Any]:
    """Fields of `TrainingArguments` for samples of several lengths."""
    data = source.workload.data
    if data is None:
        return {}
    grouped = {"train_sampling_strategy": "group_by_length"} if data.layout == "grouped" else {}
    # Trainer's default, said because another value is a mean of means.
    return grouped | {"average_tokens_across_devices": True}


def trainer_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the samples' lengths for a script with transformers' Trainer."""
    data = source.workload.data
    if data is None:
        return ()
    if data.is_packed:
        return (
            f"data: {data.describe()} measured; Trainer packs no samples: give it rows that are packed, with position_ids that "
            "begin anew with each sample, no attention_mask, and -100 as each sample's first label",
            *_row_notes(source, "transformers' DataCollatorWithFlattening does"),
        )
    multiple = _multiple(data)
    collator = "a collator that pads each batch to its longest sample" + (multiple and f" ({multiple})")
    return (
        f"data: {data.describe()} measured; give Trainer {collator}, with -100 as the labels of padding",
        *grouping_notes(data),
    )


def trl_values(source: ExportSource) -> dict[str, Any]:
    """Fields of TRL's `SFTConfig` for samples of several lengths."""
    data = source.workload.data
    if data is not None and data.is_packed:
        # `max_length` is the width of a row; TRL takes the mask away by itself.
        return {"packing": True, "packing_strategy": "bfd"}
    return {"pad_to_multiple_of": data.pad_to_multiple_of} if data is not None and data.pad_to_multiple_of > 1 else {}


def trl_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the samples' lengths for TRL, which pads each micro batch to its longest sample."""
    data = source.workload.data
    if data is None:
        length = source.workload.sequence_length
        return (
            f"data: every sample had {length} tokens in the trial; TRL cuts longer ones, and pads to the longest of a batch",
        )
    joined = "TRL joins the packed rows of a micro batch into one"
    return (
        f"data: {data.describe()} measured; your own data set decides in TRL",
        *grouping_notes(data),
        *joining_notes(source, joined),
    )


def joining_notes(source: ExportSource, joined: str) -> tuple[str, ...]:
    """Notes on attention masks for programs that join the packed rows of a micro batch into one row. `joined`: clause
    of the note that says that the program does so."""
    rows = source.config.micro_batch
    if not is_packed(source) or rows == 1 or source.attention == FLASH:
        return ()
    return (
        f"attention: a mask for each row was measured; {joined}, so that {source.attention} computes a mask and scores {rows} "
        "times as large: flash_attention_2 does not, nor does a micro batch of 1",
    )


def is_packed(source: ExportSource) -> bool:
    """Whether the trial packed several samples into a row."""
    data = source.workload.data
    return data is not None and data.is_packed


def script_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the samples' lengths for a program in which the user's code loads the data and computes the loss."""
    data = source.workload.data
    if data is None:
        return ()
    if data.is_packed:
        return (
            f"data: {data.describe()} into rows of {source.workload.sequence_length} tokens measured; pass position_ids that "
            f"begin anew with each sample, no attention_mask (one of ones lets samples see each other); {_WEIGHTED}",
            *_row_notes(source),
        )
    order = ", samples of a step sorted by length" if data.layout == "grouped" else ""
    multiple = _multiple(data)
    padding = "each micro batch padded to its longest sample" + (multiple and f", {multiple}")
    return (f"data: {data.describe()} measured, {padding}{order}; {_WEIGHTED}",)


def _row_notes(source: ExportSource, joined_by: str = "") -> tuple[str, ...]:
    """Note on packed rows with flash attention; empty with other attention, and where a micro batch is one row."""
    if not _needs_bounds(source):
        return ()
    joined = f" ({joined_by})" if joined_by else ""
    return (
        f"attention: {FLASH} reads the positions of one row alone, and samples of several rows see each other: join the "
        f"{source.config.micro_batch} rows of a micro batch into one{joined}, or pass {_BOUNDS}",
    )


def _needs_bounds(source: ExportSource) -> bool:
    """Whether flash attention would mix samples of different rows: it separates the samples of a micro batch only if
    they are in one row, or if their bounds are passed."""
    return is_packed(source) and source.attention == FLASH and source.config.micro_batch > 1


def torchtitan_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the samples' lengths for torchtitan, which packs documents into rows of equal length."""
    data = source.workload.data
    if data is None:
        return ()
    packed = "torchtitan packs documents into full rows, which pads nothing"
    if data.is_packed:
        packed = "torchtitan cuts documents where a row ends, and keeps them apart with its flex attention alone"
    return (f"data: {data.describe()} measured; {packed}. {_full_rows(source)}",)


def snippet_notes(source: ExportSource) -> tuple[str, ...]:
    """Note that the random samples of `train_snippet.py` all have one length; empty where the trial's samples all had
    one length, too."""
    if source.workload.data is None:
        return ()
    own = f"data: train_snippet.py does not read the lengths: its rows are random and full. {_full_rows(source)}"
    return (*script_notes(source), own)


def _full_rows(source: ExportSource) -> str:
    """Sentence that compares the tokens in a step of full rows with the tokens that the trial trained in a step."""
    workload = source.workload
    full = workload.global_batch * workload.sequence_length
    return (
        f"A step trains {full:,} tokens, where the trial's had {workload.tokens_per_step:,.0f} without padding: time, memory "
        "and tokens/s do not compare"
    )


def row_remark(source: ExportSource) -> str:
    """Comment on the constant `SEQUENCE_LENGTH` in the exported script; empty where all of the trial's samples had this
    length."""
    data = source.workload.data
    return "" if data is None else f"  # of every row below; the trial's samples had {data.describe()}"


def imports(source: ExportSource) -> list[str]:
    """Import lines of `train_snippet.py` that are needed where rows are not packed; empty where they are."""
    return [] if is_packed(source) else ["from transformers import masking_utils"]


def build_lines(source: ExportSource) -> list[str]:
    """Lines of `train_snippet.py` that stop transformers from searching for packed samples; empty where rows are
    packed."""
    if is_packed(source):
        return []
    return [
        "# Samples are not packed here, and transformers would wait for the device in each forward to see that. With packed",
        "# samples of your own, take this line out.",
        "masking_utils.find_packed_sequence_indices = lambda position_ids: None",
    ]


def loader_remark(source: ExportSource) -> tuple[str, ...]:
    """Comment in the exported script at the place for the user's data loader; empty where all samples have one length."""
    data = source.workload.data
    if data is None:
        return ()
    if data.is_packed:
        return (
            f"# The trial's rows held samples of {data.describe()}. These rows are one sample each; yours need position_ids",
            "# that begin anew with each sample, no attention mask, -100 as the first label of each sample, and a loss divided",
            "# by the labels of the whole step.",
            *_bounds_remark(source),
        )
    return (
        f"# The trial's samples had {data.describe()}. These rows are full; yours need their mask,",
        "# -100 as the labels of padding, and a loss divided by the labels of the whole step.",
    )


def _bounds_remark(source: ExportSource) -> tuple[str, ...]:
    if not _needs_bounds(source):
        return ()
    return (
        f"# {FLASH} reads the positions of one row alone: join the rows of a micro batch into one, or pass",
        f"# {_BOUNDS}.",
    )


def _multiple(data: SampleLengths) -> str:
    return f"pad_to_multiple_of={data.pad_to_multiple_of}" if data.pad_to_multiple_of > 1 else ""


def grouping_notes(data: SampleLengths) -> tuple[str, ...]:
    """Notes on how programs that are built on transformers' Trainer group samples by length."""
    if data.layout != "grouped":
        return ()
    return (
        "data.layout: the samples of each step were sorted by length; group_by_length sorts 50 batches of each rank, so "
        "that steps differ more in length",
    )

"""Compare what a file of TRL's ModelConfig says of 4-bit base weights with the workload's adapter (TRL 1.16)."""

from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.section import Section

_NF4 = "nf4"


def check(top: Section, workload: Workload, notes: list[str]) -> None:
    """Reject a TRL file that quantises base weights in another way than the workload's adapter. A file without
    `load_in_4bit` is accepted: it may be for transformers' Trainer, which gets a loaded model.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    adapter = workload.adapter
    ours = adapter if isinstance(adapter, Lora) and adapter.quantization is not None else None
    if top.flag("load_in_8bit"):
        raise ValueError(
            f"{top.name('load_in_8bit')} (true) is trained by no trial; use load_in_4bit, or bring your own code"
        )
    packs = top.flag("load_in_4bit")
    if packs is None:
        return
    if packs and ours is None:
        raise ValueError(
            f"{top.name('load_in_4bit')} (true), but the workload's base weights are not quantised; add quantization ('nf4') to "
            "the workload's adapter, or set it to false"
        )
    if ours is None:
        return
    if not packs:
        raise ValueError(
            f"{top.name('load_in_4bit')} (false), but the workload's adapter has quantization ({ours.quantization!r}); set it to "
            "true, or leave out quantization"
        )
    kind, twice = top.word("bnb_4bit_quant_type") or _NF4, bool(top.flag("use_bnb_nested_quant"))
    # The dtype of the words that hold packed weights changes no value.
    top.word("bnb_4bit_quant_storage")
    if kind != ours.quantization:
        raise ValueError(f"{top.name('bnb_4bit_quant_type')} ({kind!r}) is trained by no trial; use {_NF4}")
    if twice != ours.double_quantization:
        raise ValueError(
            f"{top.name('use_bnb_nested_quant')} ({str(twice).lower()}), but the workload's adapter has double_quantization "
            f"({str(ours.double_quantization).lower()}); make them equal"
        )
    if not workload.precision.has_low_states:
        notes.append(
            f"{top.name('load_in_4bit')} (true): TRL updates the adapter in bfloat16 without float32 masters; measured with masters "
            f"in {workload.precision.master_dtype} ({workload.precision.name})"
        )

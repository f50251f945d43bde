"""Compare what a file of TRL's ModelConfig says of DoRA and of 4-bit base weights with the workload's adapter (TRL 1.16)."""

from shardtune.api_schemas.training.adapters import AdapterSchema, Lora
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import trl_quantization
from shardtune.tuner.baseline.section import Section


def check(top: Section, workload: Workload, notes: list[str]) -> None:
    """Reject a file whose adapter trains other magnitudes (DoRA), or has base weights in another form, than the
    workload's. A file that states neither is accepted: it may be for transformers' Trainer, to which a script passes a
    ready model.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    _check_magnitudes(top, workload.adapter, notes)
    trl_quantization.check(top, workload, notes)


def _check_magnitudes(top: Section, adapter: AdapterSchema | None, notes: list[str]) -> None:
    has_magnitudes = isinstance(adapter, Lora) and adapter.dora
    name, stated = top.name("use_dora"), top.flag("use_dora")
    if stated is None:
        if has_magnitudes and top.values().get("use_peft") is True:
            notes.append(f"{name} is absent, which means LoRA in TRL; measured with the workload's DoRA")
        return
    if stated and not has_magnitudes:
        trained = adapter.describe() if adapter else "all weights"
        raise ValueError(
            f"{name} (true), but the workload trains {trained}; set dora to true in the workload's adapter, or set it to false"
        )
    if has_magnitudes and not stated:
        raise ValueError(
            f"{name} (false), but the workload's adapter has dora (true); set it to true, or leave out dora"
        )

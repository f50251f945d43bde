"""Words of LLaMA-Factory's YAML (0.9.5)."""

from pydantic import JsonValue

from shardtune.api_schemas.training.adapters import ALL_LINEAR
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools import float8, quantization
from shardtune.tuner.baseline.tools.tool import Fields, StatedAdapter, Tool, TrainerFields


def _translate(fields: TrainerFields, _ranks: int) -> None:
    values = fields.values
    # It checkpoints unless it is told not to.
    values["gradient_checkpointing"] = not Section(values, "baseline").flag("disable_gradient_checkpointing")
    values.pop("disable_gradient_checkpointing", None)
    fields.names["gradient_checkpointing"] = "disable_gradient_checkpointing"
    stage = values.get("stage", "sft")
    if stage not in ("sft", "pt"):
        raise ValueError(
            f"baseline.stage ({stage!r:.60}) is trained by no trial; use sft or pt, or bring your own code "
            "(docs/how-to/own-code.md)"
        )
    if stage == "pt" and values.get("packing") is None:
        values["packing"], fields.names["packing"] = True, "packing (by stage pt)"
    if fsdp := values.get("fsdp"):
        words = fsdp.split() if isinstance(fsdp, str) else fsdp if isinstance(fsdp, list) else []
        if "auto_wrap" not in words:
            fields.notes.append(
                f"baseline.fsdp ({fsdp!r:.60}) has no auto_wrap, which means the whole model as one unit in LLaMA-Factory; "
                "measured with each repeated block as a unit"
            )
        # transformers 5.6, which it pins, means FSDP1 where the section names no version.
        section = values.get("fsdp_config")
        section = dict(section) if isinstance(section, dict) else {}
        if not {"version", "fsdp_version"} & section.keys():
            section["version"] = 1
        values["fsdp_config"] = section


def _adapter(values: Fields) -> StatedAdapter:
    kind = values.get("finetuning_type", "lora")
    if kind == "full":
        return StatedAdapter("finetuning_type", None)
    if kind == "freeze":
        layers = values.get("freeze_trainable_layers", 2)
        is_last = isinstance(layers, int) and layers > 0 and values.get("freeze_trainable_modules", "all") == "all"
        is_last = is_last and not values.get("freeze_extra_modules") and not values.get("use_llama_pro")
        return StatedAdapter("freeze_trainable_layers", {"kind": "last_layers", "layers": layers}, is_known=is_last)
    if kind != "lora":
        raise ValueError(f"baseline.finetuning_type ({kind!r:.60}) is trained by no trial; use lora, freeze or full")
    rank = values.get("lora_rank", 8)
    target = values.get("lora_target", "all")
    names: JsonValue = [name.strip() for name in target.split(",")] if isinstance(target, str) else target
    targets: JsonValue = ALL_LINEAR if names == ["all"] else names
    twice = 2 * rank if isinstance(rank, int) else None
    return StatedAdapter(
        "finetuning_type",
        {
            "rank": rank,
            "alpha": values.get("lora_alpha") or twice,
            "targets": targets,
            "rslora": bool(Section(values, "baseline").flag("use_rslora")),
            "dora": bool(Section(values, "baseline").flag("use_dora")),
            **quantization.of_llama_factory(values),
        },
    )


TOOL = Tool(
    title="LLaMA-Factory",
    marks=frozenset(["finetuning_type", "cutoff_len", "disable_gradient_checkpointing", "lora_target"]),
    keys_file="llama_factory",
    length="cutoff_len",
    default_length=2048,
    loads_low=False,
    dtype_key=None,
    packing=("packing", "neat_packing"),
    packs_apart="neat_packing",
    quantised=("quantization_bit",),
    four_bit=("quantization_bit",),
    parallel=(),
    renamed={},
    translate=_translate,
    adapter=_adapter,
    float8=float8.of_llama_factory,
)

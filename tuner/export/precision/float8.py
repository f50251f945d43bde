"""Float8 in exported files: lines of `train_snippet.py`, torchtitan's converter, and notes for programs whose caller converts
the model."""

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.training.float8 import title
from shardtune.tuner.export.source import ExportSource

_OWN_FLOAT8 = {
    "axolotl": "scales tensorwise by default and leaves out the first and the last linear layer",
    "LLaMA-Factory": "scales rowwise and leaves out the output head",
}
"""Float8 of fine-tuning tools (axolotl 0.21, LLaMA-Factory 0.9.5), by the tool's name."""
_PRECOMPUTE = "precompute_float8_dynamic_scale_for_fsdp"
"""Name of torchao's function that computes the scales of weights before they are gathered."""
_TORCHTITANS = "rowwise"
"""Granularity of float8 scales in torchtitan 0.3 on GPUs (`Float8LinearConverter.Config.recipe_name`)."""
_TORCHTITANS_EMULATED = "tensorwise"
"""Granularity of float8 scales in torchtitan 0.3 on CPU ranks: its emulation forgets `recipe_name`."""


def is_used(source: ExportSource) -> bool:
    """Whether the exported trial computed matrix products in float8."""
    return source.workload.float8 is not None


def is_gathered(source: ExportSource) -> bool:
    """Whether FSDP2 gathered weights in float8 in the exported trial."""
    strategy = source.config.strategy
    return is_used(source) and isinstance(strategy, Fsdp2Config) and strategy.float8_gather


def imports(source: ExportSource) -> list[str]:
    """Import lines of `train_snippet.py` for float8; empty without it."""
    if not is_used(source):
        return []
    replacing = ["from dataclasses import replace"] if _options(source) else []
    scales = [_PRECOMPUTE] if is_gathered(source) else []
    names = ", ".join(["Float8LinearConfig", "convert_to_float8_training", *scales])
    return [*replacing, f"from torchao.float8 import {names}"]


def constants(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that defines the float8 recipe; empty without float8."""
    if not is_used(source):
        return []
    config = f'Float8LinearConfig.from_recipe_name("{source.workload.float8}")'
    options = _options(source)
    return [f"FLOAT8 = replace({config}, {', '.join(options)})" if options else f"FLOAT8 = {config}"]


def _options(source: ExportSource) -> list[str]:
    """Arguments by which the script's float8 recipe differs from torchao's."""
    gathered = ["enable_fsdp_float8_all_gather=True"] if is_gathered(source) else []
    # Emulated as the trial did: CPUs have no float8 products.
    return [*gathered, *(["emulate=True"] if source.on_cpu else [])]


def build_lines(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that converts the linear layers of blocks; empty without float8."""
    return ["convert_to_float8_training(model.get_submodule(BLOCKS), config=FLOAT8)"] if is_used(source) else []


def update_lines(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` after each optimizer step that computes the scales of the next gathers; empty without
    gathers in float8."""
    return [f"{_PRECOMPUTE}(self.model)"] if is_gathered(source) else []


def script_notes(source: ExportSource, place: str) -> tuple[str, ...]:
    """Note on float8 for a program to which the user's script passes a model: the script has to convert the model's
    layers. Empty without float8."""
    if source.workload.float8 is None:
        return ()
    gathered = (
        f"float8_gather: weights were gathered in float8; give FLOAT8 enable_fsdp_float8_all_gather=True, "
        f"and call {_PRECOMPUTE}(model) after each optimizer step"
    )
    return (
        f"float8: {title(source.workload.float8)} of the blocks' linear layers was measured; convert the model by torchao in "
        f"{place}: see FLOAT8 in {source.shown_in}",
        *([gathered] if is_gathered(source) else []),
    )


def tool_notes(source: ExportSource, tool: str, key: str | None) -> tuple[str, ...]:
    """Note on float8 for a fine-tuning tool that builds the model itself; empty without float8. `key`: the tool's own
    switch for float8."""
    if source.workload.float8 is None:
        return ()
    gathers = " and without its gathers (float8_gather)" if is_gathered(source) else ""
    own = f", whose `{key}` {_OWN_FLOAT8[tool]}" if key else ""
    return (
        f"float8: {title(source.workload.float8)} was measured; this file trains without it{gathers} in {tool}{own}",
    )


def torchtitan_converters(source: ExportSource) -> str:
    """Additional argument for torchtitan's `model_registry` that converts layers to float8; empty without float8."""
    if not is_used(source):
        return ""
    emulate = ", emulate=True" if source.on_cpu else ""
    compiled = f"model_compile_enabled={torchtitan_compiles(source)}"
    options = f'recipe_name="{_TORCHTITANS}", filter_fqns=["lm_head"], {compiled}{emulate}'
    return f", converters=[Float8LinearConverter.Config({options})]"


def torchtitan_compiles(source: ExportSource) -> bool:
    """Whether torchtitan compiles blocks as the trial did. It does not if float8 is emulated, which torchtitan rejects
    in compiled blocks."""
    return source.config.compile and not (is_used(source) and source.on_cpu)


def torchtitan_notes(source: ExportSource) -> tuple[str, ...]:
    """Note that torchtitan lacks the measured scaling of float8 and uses another; empty where it has the scaling, and
    without float8."""
    scaling = _TORCHTITANS_EMULATED if source.on_cpu else _TORCHTITANS
    if source.workload.float8 in (None, scaling):
        return ()
    where = " on CPU ranks" if source.on_cpu else ""
    return (f"float8: {source.workload.float8} scaling was measured; torchtitan 0.3 scales {scaling}{where}",)

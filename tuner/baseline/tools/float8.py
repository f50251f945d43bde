"""Switches for float8 of the fine-tuning tools: which scaling each means, and whether FSDP2 gathers in float8."""

from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools.keys import is_set
from shardtune.tuner.baseline.tools.tool import Fields, Tool

SWITCH = "fp8"
"""Key that switches float8 on."""
GATHER = "fp8_enable_fsdp_float8_all_gather"
"""Key that makes FSDP2 gather weights in float8."""
KEYS = frozenset([SWITCH, GATHER, "fp8_config", "fp8_backend"])
"""Keys about float8 that `check` reads."""


def of_axolotl(values: Fields) -> str:
    """Name of the scaling with which axolotl 0.21 multiplies in float8; tensorwise where the file does not say."""
    return Section(values, "baseline").section("fp8_config").word("recipe") or "tensorwise"


def of_llama_factory(values: Fields) -> str:
    """Name of the scaling with which LLaMA-Factory 0.9.5 multiplies in float8: always rowwise.

    Raises:
        ValueError: the file names another library than torchao.
    """
    backend = Section(values, "baseline").word("fp8_backend")
    if backend not in (None, "auto", "torchao"):
        raise ValueError(f"baseline.fp8_backend ({backend!r:.60}) is not measured; use torchao, or drop {SWITCH}")
    return "rowwise"


def check(tool: Tool, values: Fields, workload: Workload, notes: list[str]) -> bool:
    """Compare the float8 of a tool's file with the workload's. Returns whether the file makes FSDP2 gather in float8.

    Raises:
        ValueError: the file trains in float8 and the workload does not, or they scale in another way.
    """
    if not is_set(values.get(SWITCH)) or tool.float8 is None:
        return False
    recipe: str | Float8Recipe = tool.float8(values)
    if workload.float8 != recipe:
        stated = "none" if workload.float8 is None else repr(workload.float8)
        raise ValueError(
            f"baseline.{SWITCH} (true) scales {recipe} by torchao in {tool.title}, but the workload's float8 is {stated}; make "
            f"them equal, or drop {SWITCH}"
        )
    if tool.float8 is of_axolotl:
        notes.append(
            "axolotl's fp8 leaves out the model's first and last linear layer; measured without the output head alone"
        )
    gathers = is_set(values.get(GATHER))
    if gathers and recipe != "tensorwise":
        notes.append(f"baseline.{GATHER} (true) has no effect with {recipe} scaling; measured without these gathers")
    return gathers and recipe == "tensorwise"

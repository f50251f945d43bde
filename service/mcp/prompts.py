"""Prompts that lead an agent from a question to a tuned run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class PromptArgument(NamedTuple):
    """Argument of a prompt."""

    name: str
    description: str
    is_required: bool = False


class PromptEntry(NamedTuple):
    """One prompt."""

    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    text: Callable[[Mapping[str, str]], str]
    """Function that returns the text of the user's message, given the arguments of the prompt."""


_RULES = (
    "Answer from the tools of Shardtune, not from memory. Say of each figure whether it is measured, projected or "
    "predicted, and give its band. Never start a study without my budget in GPU-seconds and my consent to the estimate."
)


def _tune(values: Mapping[str, str]) -> str:
    return f"""Tune my training script{_named(values, "script")} on {values.get("cluster") or "my cluster"}.

1. Read the model, sequence length, global batch, precision and optimizer from the script. Ask me for what is missing.
2. Call `best` if a service is connected: the answer may be measured already.
3. Call `explain_config` with the present configuration, then `predict`.
4. If the predicted gain is within `equal_within`, say so and stop.
5. Otherwise propose a study: call `studies_create` with my budget, and show me the estimate before you confirm it.
6. When it is complete, call `export` and change the script. Report the verdict; only `confirmed` proves a gain.

{_RULES}"""


def _out_of_memory(values: Mapping[str, str]) -> str:
    error = f"\n\nThe error:\n{values['error']}" if values.get("error") else ""
    return f"""Why did my training run out of memory on {values.get("cluster") or "my cluster"}?{error}

1. Read the model, sequence length, micro batch, checkpointing, precision and strategy from my script or configuration.
2. Call `explain_config` with that configuration: compare `configuration.memory` with `capacity_gib`, and read
   `memory_terms` and `peak_moment`.
3. Name the two largest terms, and the smallest change that fits (`cheapest_change`).
4. Call `memory` to show which strategies fit, with the largest micro batch of each.
5. If the prediction says that it fits, say so: the cause is then outside of the model's states and activations, such as
   fragmentation, another process or an evaluation step. Ask for a trace.

{_RULES}"""


def _slow(values: Mapping[str, str]) -> str:
    folder = values.get("trace_folder")
    first = (
        f"1. Call `diagnose` with trace_folder {folder}."
        if folder
        else "1. Ask me for a folder of profiler traces (one Kineto file per rank), or for the id of a study; call `diagnose`."
    )
    return f"""Why is my distributed training slow, and what should I change?

{first}
2. Read `parts`: which part of the step is largest besides computing? Read `findings`, largest expected gain first.
3. If `late_rank` is set, other ranks wait for that one: look at its machine before you change any setting.
4. Call `explain_config` with the present configuration to compare with the fastest predicted one.
5. Name one change, its expected gain, and that this gain is an estimate until it is measured.

{_RULES}"""


def _named(values: Mapping[str, str], name: str) -> str:
    return f" {values[name]}" if values.get(name) else ""


_CLUSTER = PromptArgument("cluster", "Cluster, such as 8xh100.")
PROMPTS = {
    "tune_my_training_script": PromptEntry(
        "Tune my training script",
        "From a training script to a measured, faster configuration.",
        (PromptArgument("script", "Path of the script.", True), _CLUSTER),
        _tune,
    ),
    "why_out_of_memory": PromptEntry(
        "Why did this run out of memory?",
        "Which terms fill the memory, and the smallest change that fits.",
        (PromptArgument("error", "Error message of the run."), _CLUSTER),
        _out_of_memory,
    ),
    "why_slow": PromptEntry(
        "Why is my job slow?",
        "Where the time of a step goes, and what to change first.",
        (PromptArgument("trace_folder", "Folder with one profiler trace per rank."),),
        _slow,
    ),
}
"""Prompts by name."""

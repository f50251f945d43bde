"""Table of the tools: name, arguments, answer, function, and whether a call can cost GPU-seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.service.mcp import computed_tools, study_tools
from shardtune.service.mcp.create_tool import studies_create
from shardtune.service.mcp.diagnose_tool import diagnose
from shardtune.service.mcp.plan_tool import plan
from shardtune.service.mcp.schemas import answers, arguments, study_answers, study_arguments


@dataclass(frozen=True)
class ToolEntry:
    """One tool."""

    name: str
    title: str
    description: str
    arguments: type[Schema]
    answer: type[Schema]
    function: Callable[..., Schema]
    """Function that answers a tool call. It receives the available functions (`Product`) and the validated
    arguments."""
    can_cost: bool = False
    """Whether a call of the tool can start a run on a worker; if so, the call needs a budget from the user."""

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self.arguments.model_json_schema()

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """JSON schema of the answer."""
        # In the form in which answers are sent: fields with defaults are always there.
        return self.answer.model_json_schema(mode="serialization")


_ENTRIES = (
    ToolEntry(
        "predict",
        "Fastest configurations",
        "Predict the fastest parallel configurations (DDP, ZeRO, FSDP, tensor, pipeline, context and expert parallel, "
        "micro batch, checkpointing, compile) of a model on a cluster, with speed and memory. No GPU is used. Use it for "
        "'which settings should I use' and 'can I train this on these GPUs'.",
        arguments.PredictArguments,
        answers.PredictAnswer,
        computed_tools.predict,
    ),
    ToolEntry(
        "memory",
        "Memory of each strategy",
        "Predict the peak memory of one GPU for each strategy at a micro batch and sequence length, the largest micro "
        "batch and longest sequence that fit, and the smallest change that fits. Use it for out-of-memory questions.",
        arguments.MemoryArguments,
        answers.MemoryAnswer,
        computed_tools.memory,
    ),
    ToolEntry(
        "explain_config",
        "Explain a configuration",
        "Explain one configuration (Shardtune's format, DeepSpeed JSON, Accelerate or TrainingArguments): memory by term, "
        "step time by part, what limits it, and in which knobs the fastest configuration differs. Predicted.",
        arguments.ExplainConfigArguments,
        answers.ExplainConfigAnswer,
        computed_tools.explain_config,
    ),
    ToolEntry(
        "plan",
        "Plan a whole run",
        "Plan a training run of a number of tokens over kinds and numbers of GPUs: days, GPU-hours, money, finish date, "
        "deadline and budget, each with its band.",
        arguments.PlanArguments,
        answers.PlanAnswer,
        plan,
    ),
    ToolEntry(
        "best",
        "Best measured configuration",
        "Read the best configuration that was measured for a model, cluster and workload, with its verdict and "
        "confidence. Needs a service. Starts nothing.",
        study_arguments.BestArguments,
        study_answers.BestAnswer,
        study_tools.best,
    ),
    ToolEntry(
        "compare",
        "Compare measured configurations",
        "Compare two to four measured configurations side by side: speed, memory and the knobs that differ. Needs a service.",
        study_arguments.CompareArguments,
        study_answers.CompareAnswer,
        study_tools.compare,
    ),
    ToolEntry(
        "studies_list",
        "List studies",
        "List studies (searches by real trials), newest first. Needs a service.",
        study_arguments.StudiesListArguments,
        study_answers.StudiesListAnswer,
        study_tools.studies_list,
    ),
    ToolEntry(
        "studies_status",
        "Status and result of a study",
        "Read the progress of a study, and its result with the verdict of paired runs once it is complete. Needs a service.",
        study_arguments.StudiesStatusArguments,
        study_answers.StudiesStatusAnswer,
        study_tools.studies_status,
    ),
    ToolEntry(
        "studies_create",
        "Create a study",
        "Search the fastest configuration by real trials on a worker. Costs GPU-seconds: max_gpu_seconds is the user's "
        "budget. The first call only estimates and returns a confirmation; repeat it with the code after the user agreed.",
        study_arguments.StudiesCreateArguments,
        study_answers.StudiesCreateAnswer,
        studies_create,
        can_cost=True,
    ),
    ToolEntry(
        "diagnose",
        "Diagnose a step",
        "Find where the time of a training step goes, from a folder of profiler traces of any job on this machine, or for "
        "a trial of a study. A trial without a stored diagnosis runs once more, which needs max_gpu_seconds.",
        study_arguments.DiagnoseArguments,
        study_answers.DiagnoseAnswer,
        diagnose,
        can_cost=True,
    ),
    ToolEntry(
        "export",
        "Export a configuration",
        "Return the files that run a measured configuration, and the settings that they cannot express. Formats: "
        f"{', '.join(get_args(ExportFormat))} (standard: launch script, DeepSpeed JSON and Accelerate YAML). Needs a service.",
        study_arguments.ExportArguments,
        study_answers.ExportAnswer,
        study_tools.export,
    ),
)
TOOLS = {entry.name: entry for entry in _ENTRIES}
"""Tools by name."""

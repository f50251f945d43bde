"""Verdict over the steps of `make test-gpu`: claims of docs/ proved by card, and claims that these GPUs cannot show."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_report.outcomes import read_outcomes
from benchmarks.gpu_report.steps import Done, has_ended


class Claim(NamedTuple):
    """A sentence of the documentation, and what would prove it."""

    says: str
    page: str
    evidence: tuple[str, ...]
    """Beginnings of names of tests, or `step:NAME`."""


CLAIMS = (
    Claim("Every backend trains the same thing", "README.md", ("test_every_backend_trains_the_same",)),
    Claim("Ranks are forked from a host that has touched no device", "docs/decisions/0003-forked-ranks.md", ("test_a_fork",)),
    Claim("Selective and full checkpointing train with every backend", "docs/reference/search-space.md", ("test_every_checkpointing",)),
    Claim("Offloading to the host trains", "docs/reference/search-space.md", ("test_offload_trains",)),
    Claim("Blocks' inputs in host memory train the same in less memory", "docs/explanation/activation-offload.md",
          ("test_inputs_in_host_memory",)),
    Claim("LoRA beside 4-bit weights trains the same, in the predicted memory", "docs/reference/adapter.md", ("test_4_bit_weights",)),
    Claim("Number formats, optimizers, DoRA and packed samples train the same under each backend", "docs/explanation/recipes.md",
          ("test_each_training_is_the_same",)),
    Claim("MLPs in slices train the same", "docs/explanation/mlp-slices.md", ("test_mlps_in_slices",)),
    Claim("Compiled blocks train", "docs/reference/search-space.md", ("test_compiled_blocks",)),
    Claim("Out of memory makes a configuration infeasible and nothing else", "docs/contributing/architecture.md", ("test_running_out_of",)),
    Claim("The memory gate lets pass what fits", "docs/explanation/prediction.md", ("test_the_gate_lets_pass",)),
    Claim("The answer can be resumed", "docs/contributing/guarantees.md", ("test_a_resumed_trial_continues_training", "step:tune")),
    Claim("Ranks have the environment of their configuration", "docs/how-to/gpus.md", ("test_the_environment_of_a_trial",)),
    Claim("Devices are watched, and others on them noticed", "docs/contributing/architecture.md",
          ("test_a_real_device", "test_a_process_on_the_gpu", "test_a_trial_records")),
    Claim("The hardware is measured in a minute", "docs/explanation/prediction.md", ("step:measure-hardware",)),
    Claim("A study finds its answer and writes files", "README.md", ("step:tune",)),
    Claim("The exported files train under torchrun", "docs/how-to/exports.md", ("step:export",)),
    Claim("A warm rank is as fast as a cold one", "docs/measurements/warm-cold.md", ("step:warm", "step:cold")),
)  # fmt: skip
ONE_GPU = (
    "communication: collectives, overlap, bucket sizes, prefetch and reduce-scatter do nothing on one rank",
    "sharding: FSDP and ZeRO keep whole states on one rank, so their memory and speed say nothing of several",
    "NCCL's settings, links between GPUs, stragglers, and failures of one rank among others",
)
ONE_NODE = ("several nodes: HSDP and hpZ across them, the network",)
_TRIAL = re.compile(
    r"trial (\d+) .*?: ([\d,]+) tokens/s/GPU, ([\d.]+) GiB(?:, of which [^(]*)? \(predicted ([\d,]+), ([\d.]+) GiB\)"
)
_STEP = re.compile(r"^step \d+: .*, ([\d,]+) tokens/s/GPU$", re.MULTILINE)


def verdict(done: Sequence[Done], outcomes_file: Path, cards: Sequence[str]) -> dict[str, Any]:
    """The whole report as one JSON object."""
    tests = read_outcomes(outcomes_file)
    outcomes = tests | {f"step:{item.step.name}": item.status for item in done}
    remainder = (*(ONE_GPU if len(cards) == 1 else ()), *ONE_NODE)
    return {
        "passed": all(item.status == "passed" for item in done) and bool(tests) and "failed" not in tests.values(),
        "unfinished": [item.step.name for item in done if not has_ended(item)],
        "cards": list(cards),
        "claims": [
            {"says": claim.says, "page": claim.page, "verdict": _proved(claim, outcomes)} for claim in CLAIMS
        ],
        "steps": [
            {"name": item.step.name, "status": item.status, "seconds": round(item.seconds, 1), "means": item.step.means,
             "last_words": "" if item.status == "passed" else item.last_words}
            for item in done
        ],
        "tests": tests,
        "figures": _figures({item.step.name: item for item in done}),
        "cannot_show": list(remainder),
    }  # fmt: skip


def _proved(claim: Claim, outcomes: dict[str, str]) -> str:
    """`proved` where all of its evidence ran and passed, `failed` where any did not, else `open`."""
    results = [[outcome for name, outcome in outcomes.items() if name.startswith(item)] for item in claim.evidence]
    if any(outcome in ("failed", "late") for item in results for outcome in item):
        return "failed"
    return "proved" if all("passed" in item for item in results) else "open"


def _figures(done: dict[str, Done]) -> dict[str, Any]:
    """Prediction against measurement, warm against cold, the exported job against its trial."""
    results: dict[str, Any] = {}
    if "tune" in done:
        text = done["tune"].output + done["tune"].last_words
        results["predicted"] = [
            {"trial": int(number), "speed_ratio": _ratio(speed, guess), "memory_ratio": _ratio(memory, reserved)}
            for number, speed, memory, guess, reserved in _TRIAL.findall(text)
        ]
    rates: dict[str, float | None] = {name: _rate(done[name]) for name in ("warm", "cold") if name in done}
    exported = sorted(_number(rate) for rate in _STEP.findall(done["export"].output)) if "export" in done else []
    rates["exported"] = exported[len(exported) // 2] if exported else None
    results["tokens_per_s_per_gpu"] = rates
    return results


def _rate(done: Done) -> float | None:
    try:
        return float(json.loads(done.output)["tokens_per_s_per_gpu"])
    except (ValueError, KeyError, TypeError):
        return None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _ratio(measured: str, predicted: str) -> float | None:
    return round(_number(measured) / _number(predicted), 3) if _number(predicted) else None


def markdown(results: dict[str, Any]) -> str:
    """The report for a person."""
    lines = [
        f"# {'Passed' if results['passed'] else 'Not passed'}: {len(results['cards'])} × {results['cards'][0]}",
        "",
    ]
    if results["unfinished"]:
        lines += [f"Not finished: {', '.join(results['unfinished'])}. `make test-gpu` once more continues there.", ""]
    lines += ["## What is proved on this card", "", "| claim | page | verdict |", "|---|---|---|"]
    lines += [f"| {claim['says']} | {claim['page']} | {claim['verdict']} |" for claim in results["claims"]]
    lines += ["", "`open`: nothing that ran here proves it.", "", "## Steps", ""]
    lines += ["| step | means | status | seconds |", "|---|---|---|---|"]
    lines += [
        f"| {step['name']} | {step['means']} | {step['status']} | {step['seconds']} |" for step in results["steps"]
    ]
    counts = {kind: list(results["tests"].values()).count(kind) for kind in ("passed", "failed", "skipped")}
    lines += ["", "Tests: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()) + "."]
    lines += [f"- failed: `{name}`" for name, outcome in results["tests"].items() if outcome == "failed"]
    lines += ["", "## Figures", "", "Tokens per second and GPU, one run each: a difference of a few percent is noise."]
    lines += ["```json", json.dumps(results["figures"], indent=2), "```", "", "## What this machine cannot show", ""]
    lines += [f"- {line}" for line in results["cannot_show"]]
    for step in results["steps"]:
        if step["last_words"]:
            lines += ["", f"## Last words of {step['name']}", "", "```", step["last_words"].strip(), "```"]
    return "\n".join(lines) + "\n"

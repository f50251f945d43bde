"""A diagnosis in words: three sentences, and what each part is called."""

from collections.abc import Iterator

from shardtune.api_schemas.trials.diagnosis import (
    PART_NAMES,
    CollectiveFigures,
    Diagnosis,
    Finding,
    FindingKind,
    MemoryMoment,
    StepParts,
    Traced,
    Tried,
)
from shardtune.api_schemas.trials.expected_parts import ExpectedName

PART_WORDS = {
    "compute": "computing",
    "optimizer": "the optimizer",
    "transferring": "exposed transfers",
    "waiting": "waiting for another rank",
    "copies": "exposed copies",
    "data": "waiting for data",
    "host": "the host (nothing was launched)",
    "idle": "idle (launched, but not begun)",
}
KIND_WORDS = {
    "all_reduce": "all-reduces",
    "all_gather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls",
    "send_recv": "sends",
    "broadcast": "broadcasts",
    "barrier": "barriers",
}
KNOWN_MISTAKES: dict[FindingKind, str] = {
    "all_gathers_dominate": "All-gathers of parameters dominate",
    "buckets_too_large": "Buckets are too large to overlap",
    "buckets_too_small": "Buckets are too small",
    "checkpointed_without_need": "Activations are checkpointed without need",
    "data_waits": "The data come too late",
    "host_bound": "The host launches too little",
    "late_rank": "One rank is late",
    "network_limits": "The network limits",
    "offload_costs": "Offload costs more than it need",
    "out_of_memory": "It runs out of memory",
    "reduces_every_micro_batch": "Gradients are reduced in every micro batch",
    "units_too_large": "Parameters are gathered in units too large to overlap",
    "units_too_small": "Parameters are gathered in units that are too small",
}
EXPECTED_WORDS: dict[ExpectedName, str] = {
    "computing": "computing",
    "launching": "the host's launches and gaps after them",
    "communication": "communication that nothing hides",
    "optimizer": "the optimizer",
}
_HALF_OF: dict[FindingKind, str] = {
    "all_gathers_dominate": " as half of these gathers",
    "buckets_too_large": " as half of the reducing that could run beside computing",
    "host_bound": " as half of that time",
    "units_too_large": " as half of that time",
}
_SHOWN = 0.01


def findings_in_words(found: Diagnosis) -> list[str]:
    """Each with what was seen, what to change, and what that is expected to save."""
    if not found.findings:
        return ["No known mistake was found."]
    return [line for number, one in enumerate(found.findings, 1) for line in _finding(number, one)]


def expected_in_words(found: Diagnosis) -> str:
    """Each part beside its prediction, what is furthest off first; empty where nothing is predicted."""
    if not found.expected:
        return ""
    told = (
        f"{EXPECTED_WORDS[one.name]} {1e3 * one.measured_s:,.1f} ms ({1e3 * one.expected_s:,.1f} expected)"
        for one in found.expected
    )
    return f"Beside the prediction, which knows no profiler, furthest off first: {', '.join(told)}."


def _finding(number: int, one: Finding) -> Iterator[str]:
    yield f"{number}. {KNOWN_MISTAKES[one.kind]}: {one.evidence}."
    yield f"   change: {one.remedy}{expected(one)}."
    if one.tried is not None:
        yield f"   tried: {tried_in_words(one.tried)}."


def expected(one: Finding) -> str:
    """What a change is expected to bring, and how much of what was seen that is where no knob's value says it."""
    if one.kind == "out_of_memory":
        return "; predicted to fit, the fastest of those that are" if one.knobs else ""
    half = "" if one.knobs else _HALF_OF.get(one.kind, "")
    return f"; expected to save {one.expected_gain:.0%} of the step (estimated{half}, not measured)"


def tried_in_words(tried: Tried) -> str:
    """Such as `+11 % [7, 14] (9 pairs of fresh runs, study-1)`."""
    where = f"{tried.pairs} paired runs, {tried.study_id}"
    if tried.outcome == "does_not_run":
        return f"does not run: {tried.why} ({tried.study_id})"
    if tried.speedup is None or tried.ci95 is None:
        return f"nothing came of it ({where})"
    low, high = (100 * (end - 1) for end in tried.ci95)
    words = {"faster": "", "not_faster": "did not help: ", "undecided": "undecided: "}[tried.outcome]
    return f"{words}{100 * (tried.speedup - 1):+.0f} % [{low:.0f}, {high:.0f}] ({where})"


def sentences(found: Diagnosis) -> list[str]:
    """Where the step went, what communication did, and who was waited for."""
    return [_where(found), _communication(found), _late(found)]


def memory_in_words(moment: MemoryMoment) -> str:
    """What the fullest rank held, and where."""
    told = moment.describe()
    return f"{told[:1].upper()}{told[1:]}."


def columns_in_words(found: Diagnosis) -> str:
    """What the parts are whose names do not say it."""
    if found.device == "cpu":
        told = "host: all that is no other part (Python, dispatch); idle: of GPUs only"
    else:
        told = "host: nothing was launched (Python, dispatch, synchronisation); idle: launched, but not begun"
    return f"{told}; hidden: communication beside computing"


def share(part_s: float, found: Diagnosis) -> float:
    """Of the mean step."""
    return part_s / found.step_s if found.step_s else 0.0


def bytes_in_words(count: float) -> str:
    """In the largest binary unit that leaves a digit before the point, as memory and buckets are told."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def speed_in_words(bytes_per_s: float) -> str:
    """In decimal units, as links and nccl-tests are told."""
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def use_in_words(one: CollectiveFigures) -> str:
    """Such as `all-gathers of parameters`."""
    return f"{KIND_WORDS.get(one.kind, 'other collectives')} of {one.purpose}"


def cost(traced: Traced) -> str:
    """What the run under the profiler took."""
    return (
        f"recorded in a run of its own: {traced.elapsed_s:.1f} s; a step took {1e3 * traced.step_s:,.1f} ms, just before "
        f"without the profiler {1e3 * traced.plain_step_s:,.1f} ms; traces ({bytes_in_words(traced.bytes)}) in {traced.folder}"
    )


def _parts(parts: StepParts) -> Iterator[tuple[float, str]]:
    yield from sorted(((getattr(parts, f"{name}_s"), PART_WORDS[name]) for name in PART_NAMES), reverse=True)


def _where(found: Diagnosis) -> str:
    shown = [f"{share(s, found):.0%} {word}" for s, word in _parts(found.parts) if share(s, found) >= _SHOWN]
    steps, ranks = len({one.step for one in found.steps}), len(found.ranks)
    return (
        f"A step took {1e3 * found.step_s:,.1f} ms under the profiler (mean of {steps} step{'s' * (steps > 1)} on "
        f"{ranks} rank{'s' * (ranks > 1)}): {', '.join(shown)}."
    )


def _communication(found: Diagnosis) -> str:
    if found.overlap is None or not found.collectives:
        return "No communication was found in it."
    all_s = sum(one.communication_s for one in found.steps) / len(found.steps)
    most = found.collectives[0]
    speed = "" if most.bytes_per_s is None else f", moving {speed_in_words(most.bytes_per_s)}"
    size = "" if most.message_bytes is None else f" of {bytes_in_words(most.message_bytes)}"
    return (
        f"Communication ran for {share(all_s, found):.0%} of the step, {found.overlap:.0%} of that beside computation; most "
        f"of what is exposed are {use_in_words(most)} ({most.calls:,.0f} a step{size}{speed}): "
        f"{share(most.exposed_s, found):.0%} of the step."
    )


def _late(found: Diagnosis) -> str:
    late = found.late_rank
    if late is None:
        return "No rank was found that the others wait for."
    return (
        f"Rank {late.rank} comes last: the others wait {1e3 * late.others_wait_s:,.1f} ms a step for it "
        f"({share(late.others_wait_s, found):.0%} of the step; {late.share_of_waiting:.0%} of all waiting is for it, "
        f"most in {late.steps} step{'s' * (late.steps > 1)})."
    )

"""Text of a diagnosis: its three summary sentences, its findings, and the display names of the parts of a step."""

from collections.abc import Iterator

from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.trials.diagnosis import (
    PART_NAMES,
    CollectiveFigures,
    Diagnosis,
    Finding,
    FindingKind,
    MemoryMoment,
    ProfilerRecording,
    RemedyResult,
    StepParts,
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
    "idle": "idle (launched, not started)",
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
FINDING_TITLES: dict[FindingKind, str] = {
    "all_gathers_dominate": "All-gathers of parameters dominate",
    "buckets_too_large": "Buckets are too large to overlap",
    "buckets_too_small": "Buckets are too small",
    "checkpointed_without_need": "Activations are checkpointed unnecessarily",
    "data_waits": "Data loading is too slow",
    "host_bound": "The host launches kernels too slowly",
    "late_rank": "One rank is slower than the others",
    "network_limits": "The network is the bottleneck",
    "offload_costs": "Offloading costs more than necessary",
    "out_of_memory": "Out of memory",
    "reduces_every_micro_batch": "Gradients are reduced in every micro batch",
    "units_too_large": "Parameters are gathered in units that are too large to overlap",
    "units_too_small": "Parameters are gathered in units that are too small",
}
EXPECTED_WORDS: dict[ExpectedName, str] = {
    "computing": "computing",
    "launching": "launches by the host and the gaps after them",
    "communication": "exposed communication",
    "optimizer": "the optimizer",
}
# Rules that compute no new knob value estimate the saving as half of the time they saw; the text must say half of what.
_HALF_OF_WHAT: dict[FindingKind, str] = {
    "all_gathers_dominate": " as half of these gathers",
    "buckets_too_large": " as half of the reductions that could overlap computing",
    "host_bound": " as half of that time",
    "units_too_large": " as half of that time",
}
# Parts below 1 % of the step are left out of the sentence: eight parts are more than a reader takes in.
_LEAST_FRACTION = 0.01


def findings_in_words(diagnosis: Diagnosis) -> list[str]:
    """Return the lines of each finding of a diagnosis: its evidence, the change to make, and the expected saving."""
    if not diagnosis.findings:
        return ["No findings."]
    return [line for number, finding in enumerate(diagnosis.findings, 1) for line in _finding_lines(number, finding)]


def expected_in_words(diagnosis: Diagnosis) -> str:
    """Compare each part of a training step with its prediction, and list the largest error first; empty if the step
    was not predicted."""
    if not diagnosis.expected:
        return ""
    parts = (
        f"{EXPECTED_WORDS[part.name]} {1e3 * part.measured_s:,.1f} ms ({1e3 * part.expected_s:,.1f} expected)"
        for part in diagnosis.expected
    )
    return f"Measured and predicted time (the prediction leaves out the profiler), largest error first: {', '.join(parts)}."


def _finding_lines(number: int, finding: Finding) -> Iterator[str]:
    yield f"{number}. {FINDING_TITLES[finding.kind]}: {finding.evidence}."
    yield f"   change: {finding.remedy}{expected_saving(finding)}."
    if finding.remedy_result is not None:
        yield f"   tried: {remedy_in_words(finding.remedy_result)}."


def expected_saving(finding: Finding) -> str:
    """Describe the saving that the change of a finding is expected to bring, and how the saving was estimated."""
    # A trial that ran out of memory has no step time to save a fraction of.
    if finding.kind == "out_of_memory":
        return "; the fastest configuration that is predicted to fit" if finding.knobs else ""
    half = "" if finding.knobs else _HALF_OF_WHAT.get(finding.kind, "")
    return f"; expected to save {finding.expected_gain:.0%} of the step (estimated{half}, not measured)"


def remedy_in_words(attempt: RemedyResult) -> str:
    """Describe the measured effect of a finding's remedy on the speed: `+11 % [7, 14] (9 paired runs, study-1)`."""
    runs = f"{attempt.pairs} paired runs, {attempt.study_id}"
    if attempt.outcome == "does_not_run":
        return f"does not run: {attempt.why} ({attempt.study_id})"
    if attempt.speedup is None or attempt.ci95 is None:
        return f"no result ({runs})"
    low, high = (100 * (end - 1) for end in attempt.ci95)
    words = {
        "faster": "",
        "not_faster": "did not help: ",
        "undecided": "undecided: ",
        "too_busy": "the machine was too busy: ",
    }[attempt.outcome]
    return f"{words}{100 * (attempt.speedup - 1):+.0f} % [{low:.0f}, {high:.0f}] ({runs})"


def summary_sentences(diagnosis: Diagnosis) -> list[str]:
    """Return three sentences that sum up a diagnosis: the parts of the step, its communication, and the rank that the
    other ranks wait for."""
    return [_step_sentence(diagnosis), _communication_sentence(diagnosis), _late_rank_sentence(diagnosis)]


def memory_in_words(moment: MemoryMoment) -> str:
    """Describe the peak memory in a profiled run, for the rank that used the most memory."""
    description = moment.describe()
    return f"{description[:1].upper()}{description[1:]}."


def columns_in_words(diagnosis: Diagnosis) -> str:
    """Explain those columns of the diagnosis table whose names are not self-explanatory."""
    if diagnosis.device == "cpu":
        explanation = "host: time in no other part (Python, dispatch); idle: measured on GPUs only"
    else:
        explanation = "host: nothing was launched (Python, dispatch, synchronisation); idle: launched, not started"
    return f"{explanation}; hidden: communication that overlaps computing"


def fraction_of_step(part_s: float, diagnosis: Diagnosis) -> float:
    """Return the fraction of the mean step time that a part of the step takes; 0 if no step was measured."""
    return part_s / diagnosis.step_s if diagnosis.step_s else 0.0


def bytes_in_words(count: float) -> str:
    """Format a size of memory or of a bucket in the largest binary unit in which it is at least 1."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def collective_in_words(collective: CollectiveFigures) -> str:
    """Describe a kind of collective by its purpose: `all-gathers of parameters`."""
    return f"{KIND_WORDS.get(collective.kind, 'other collectives')} of {collective.purpose}"


def profiling_cost(traced: ProfilerRecording) -> str:
    """Describe the cost of a profiled run: its duration, its step time with and without the profiler, and its
    traces.
    """
    return (
        f"profiled in a separate run of {traced.elapsed_s:.1f} s; a step took {1e3 * traced.step_s:,.1f} ms, and "
        f"{1e3 * traced.plain_step_s:,.1f} ms without the profiler; traces ({bytes_in_words(traced.bytes)}) in {traced.folder}"
    )


def _longest_parts(parts: StepParts) -> Iterator[tuple[float, str]]:
    yield from sorted(((getattr(parts, f"{name}_s"), PART_WORDS[name]) for name in PART_NAMES), reverse=True)


def _step_sentence(diagnosis: Diagnosis) -> str:
    shown = [
        f"{fraction_of_step(s, diagnosis):.0%} {word}"
        for s, word in _longest_parts(diagnosis.parts)
        if fraction_of_step(s, diagnosis) >= _LEAST_FRACTION
    ]
    steps, ranks = len({step_parts.step for step_parts in diagnosis.steps}), len(diagnosis.ranks)
    return (
        f"A step took {1e3 * diagnosis.step_s:,.1f} ms under the profiler (mean of {steps} step{'s' * (steps > 1)} on "
        f"{ranks} rank{'s' * (ranks > 1)}): {', '.join(shown)}."
    )


def _communication_sentence(diagnosis: Diagnosis) -> str:
    # `overlap` is None where no rank communicated: a fraction of nothing, which must not read as 0 %.
    if diagnosis.overlap is None or not diagnosis.collectives:
        return "The step contains no communication."
    # `communication_s` covers all ranks and steps; `share` divides by the mean step of one rank.
    all_s = sum(step_parts.communication_s for step_parts in diagnosis.steps) / len(diagnosis.steps)
    most = diagnosis.collectives[0]
    speed = "" if most.bytes_per_s is None else f", moving {speed_in_words(most.bytes_per_s)}"
    size = "" if most.message_bytes is None else f" of {bytes_in_words(most.message_bytes)}"
    return (
        f"Communication ran for {fraction_of_step(all_s, diagnosis):.0%} of the step, {diagnosis.overlap:.0%} of it overlapped with computing. Most "
        f"exposed time is spent in {collective_in_words(most)} ({most.calls:,.0f} a step{size}{speed}): "
        f"{fraction_of_step(most.exposed_s, diagnosis):.0%} of the step."
    )


def _late_rank_sentence(diagnosis: Diagnosis) -> str:
    late = diagnosis.late_rank
    if late is None:
        return "No rank makes the others wait."
    return (
        f"Rank {late.rank} arrives last: the others wait {1e3 * late.others_wait_s:,.1f} ms a step for it "
        f"({fraction_of_step(late.others_wait_s, diagnosis):.0%} of the step; {late.share_of_waiting:.0%} of all waiting time, "
        f"most in {late.steps} step{'s' * (late.steps > 1)})."
    )

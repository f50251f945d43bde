"""Sustained speed of an answer: the speed of its long run after the verdict, beside that of the comparison."""

from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.verdicts import SustainedOutcome, SustainedSpeed
from shardtune.service.wording import study_words
from shardtune.service.wording.answers.trust_line import Trust

_SAME_CLOCK = 0.99
"""Smallest clock in a sustained run that counts as that of the comparison, as a fraction of that clock."""


def reasons(result: StudyResult) -> list[Trust]:
    """Return the sustained speed of a study's best configuration as one reason for or against its figures; empty if the
    study makes no sustained run."""
    sustained = result.sustained
    if sustained is None:
        return []
    if sustained.outcome is not SustainedOutcome.MEASURED:
        tone = "warn" if sustained.outcome is SustainedOutcome.FAILED else "quiet"
        return [Trust(tone, unmeasured_text(sustained))]
    if sustained.is_disturbed:
        brief = "the sustained run was disturbed"
        cause = "" if sustained.reason is None else f" ({sustained.reason})"
        return [Trust("warn", f"{brief}{cause}: {speed_text(sustained)}", brief)]
    if sustained.is_slower:
        brief = f"a long training is {-_percent(sustained):.1f} % slower than the trials"
        remedy = "; cooler GPUs, or a higher power limit, may keep the speed" if _has_lower_clocks(sustained) else ""
        return [Trust("warn", f"{brief}: {speed_text(sustained)}{remedy}", brief)]
    if sustained.lowest_tokens_per_s_per_gpu is None:
        return [Trust("quiet", f"sustained speed: {speed_text(sustained)}")]
    brief = "a long training keeps the speed of the trials"
    return [Trust("good", f"{brief}: {speed_text(sustained)}", brief)]


def unmeasured_text(sustained: SustainedSpeed) -> str:
    """Say why an answer has no sustained speed."""
    if sustained.outcome is SustainedOutcome.FAILED:
        return f"no sustained speed: the long run after the verdict failed ({sustained.reason}); the answer stays"
    remedy = "" if sustained.remedy is None else f"; {sustained.remedy}"
    return f"no sustained speed: the long run after the verdict was left out: {sustained.reason}{remedy}"


def speed_text(sustained: SustainedSpeed) -> str:
    """Describe the sustained speed and its duration beside the speed of the comparison, with the state of the GPUs as
    far as it is known."""
    speed, compared = sustained.tokens_per_s_per_gpu, sustained.compared_tokens_per_s_per_gpu
    assert speed is not None and sustained.duration_s is not None
    text = (
        f"{study_words.rate(speed)} tokens/s/GPU in the second half of {sustained.duration_s:,.0f} s, against "
        f"{study_words.rate(compared)} in the comparison ({_percent(sustained):+.1f} %"
    )
    lowest = sustained.lowest_tokens_per_s_per_gpu
    text += ")" if lowest is None else f"; chance alone allows {study_words.rate(lowest)})"
    return "; ".join([text, *_gpu_figures(sustained)])


def _has_lower_clocks(sustained: SustainedSpeed) -> bool:
    """Return whether GPUs lowered their clocks in the sustained run, as the driver says or the clocks show."""
    clock, compared = sustained.sm_clock_mhz, sustained.compared_sm_clock_mhz
    is_lower = clock is not None and compared is not None and clock < _SAME_CLOCK * compared
    return is_lower or bool(sustained.throttle_reasons)


def _percent(sustained: SustainedSpeed) -> float:
    """Return by how many per cent the sustained speed differs from that of the comparison."""
    assert sustained.tokens_per_s_per_gpu is not None
    return 100 * (sustained.tokens_per_s_per_gpu / sustained.compared_tokens_per_s_per_gpu - 1)


def _gpu_figures(sustained: SustainedSpeed) -> list[str]:
    """Describe clock, temperature and power of the GPUs in the sustained run, beside those in the comparison."""
    figures = []
    if sustained.sm_clock_mhz is not None:
        before = _before(sustained.compared_sm_clock_mhz, "MHz")
        figures.append(f"slowest GPU at {sustained.sm_clock_mhz:,.0f} MHz{before}")
    if sustained.temperature_c is not None:
        before = _before(sustained.compared_temperature_c, "°C")
        figures.append(f"up to {sustained.temperature_c:.0f} °C{before}")
    if sustained.power_w is not None:
        figures.append(f"{sustained.power_w:,.0f} W a GPU")
    if sustained.throttle_reasons:
        figures.append(f"clocks lowered by {', '.join(sustained.throttle_reasons)}")
    return figures


def _before(value: float | None, unit: str) -> str:
    return "" if value is None else f" ({value:,.0f} {unit} in the comparison)"

"""Questions about plans of whole runs. Keys are published GPU-hours, or arithmetic on the question's own numbers."""

from typing import Any

from benchmarks.agent_questions.question import Question, band, covers, equals, near

_HOUR_S = 3600
_PUBLISHED: tuple[tuple[str, float, str, int, float], ...] = (
    ("llama-3.1-8b", 15e12, "h100", 1024, 1.46e6),
    ("llama-3.1-70b", 15e12, "h100", 4096, 6.4e6),
)
"""Model, tokens, GPU, number of GPUs and published GPU-hours (benchmarks/data/whole_runs.csv)."""
_TINY_LLAMA = {
    "model_type": "llama", "num_hidden_layers": 22, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


def _plan(model: str, tokens: float, gpu: str, count: int, **more: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    return (("plan", {"model": model, "tokens": tokens, "gpus": [gpu], "counts": [count], **more}),)


def _published(row: tuple[str, float, str, int, float]) -> Question:
    model, tokens, gpu, count, hours = row
    return Question(
        "plan",
        f"How many GPU-hours does {model} take for {tokens / 1e12:g} trillion tokens on {count} {gpu}?",
        _plan(model, tokens, gpu, count),
        lambda answers: band(answers[0]["choices"][0]["gpu_hours"]),
        covers(hours),
        f"{hours:,.0f} published (benchmarks/data/whole_runs.csv)",
    )


def questions() -> list[Question]:
    """Return the questions about plans."""
    return [
        *map(_published, _PUBLISHED),
        Question(
            "plan", "How many GPU-hours does TinyLlama (1.1 B) take for 3 trillion tokens on 16 A100 of 40 GB?",
            (("plan", {"model": _TINY_LLAMA, "tokens": 3e12, "gpus": ["a100-40gb"], "counts": [16]}),),
            lambda answers: band(answers[0]["choices"][0]["gpu_hours"]), covers(34_560),
            "34,560 published (benchmarks/data/whole_runs.csv)",
        ),
        Question(
            "plan", "How much longer than its steps alone does a run of 10^12 tokens of Llama 3.1 8B take on 128 H100?",
            _plan("llama-3.1-8b", 1e12, "h100", 128),
            lambda answers: answers[0]["choices"][0]["gpu_hours"]["value"]
            / (1e12 / answers[0]["choices"][0]["speed"]["value"] / _HOUR_S),
            near(1.16, 0.02), "15 % for evaluation, data and pauses, and 1 % for checkpoints and failures",
        ),
        Question(
            "plan", "What does 10^12 tokens of Llama 3.1 8B on 128 H100 cost at 2.50 a GPU-hour, relative to its GPU-hours?",
            _plan("llama-3.1-8b", 1e12, "h100", 128, prices={"h100": 2.5}),
            lambda answers: answers[0]["choices"][0]["cost"]["value"] / answers[0]["choices"][0]["gpu_hours"]["value"],
            near(2.5, 0.01), "2.50 for each GPU-hour",
        ),
        Question(
            "plan", "Can Llama 3.1 70B see 15 trillion tokens on 64 H100 by the end of March 2031 if it starts on 1 December 2030?",
            _plan("llama-3.1-70b", 15e12, "h100", 64, start="2030-12-01", deadline="2031-03-31"),
            lambda answers: answers[0]["choices"][0]["meets_deadline"], equals("no"),
            "no: 6 × 70e9 × 15e12 FLOPs at 64 × 989e12 FLOP/s take more than 3 years at full peak",
        ),
        Question(
            "plan", "Can I train Llama 3.1 405B on 8 H100 at all?",
            _plan("llama-3.1-405b", 1e12, "h100", 8),
            lambda answers: [(row["gpu"], row["gpus"]) for row in answers[0]["impossible"]],
            equals([("h100", 8)]), "no: 754 GiB of states for each GPU",
        ),
        Question(
            "plan", "Which of 64 or 512 H100 takes fewer GPU-hours for 10^12 tokens of Llama 3.1 8B?",
            (("plan", {"model": "llama-3.1-8b", "tokens": 1e12, "gpus": ["h100"], "counts": [64, 512]}),),
            lambda answers: answers[0]["choices"][0]["gpus"], equals(64),
            "64: communication and failures grow with the number of GPUs",
        ),
    ]  # fmt: skip

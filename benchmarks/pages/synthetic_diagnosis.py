"""A diagnosis as large as they get: eight ranks, three steps, a timeline of all of them, as many collectives as a page shows."""

import random

from shardtune.api_schemas.trials.diagnosis import (
    PART_LETTERS,
    PART_NAMES,
    CollectiveFigures,
    Diagnosis,
    Finding,
    Lane,
    ProfilerRecording,
    RankStep,
    StepParts,
    Timeline,
)

_RANKS, _STEPS, _CELLS, _USES = 8, 3, 200, 12


def diagnosis(seed: int) -> Diagnosis:
    """Drawn by the seed; its sizes are always the same."""
    rng = random.Random(seed)
    lanes = (
        Lane(
            rank=rank,
            parts="".join(rng.choices("".join(PART_LETTERS), k=_CELLS)),
            communication="".join(rng.choices("xb.", k=_CELLS)),
        )
        for rank in range(_RANKS)
    )
    return Diagnosis(
        device="cpu",
        world_size=_RANKS,
        ranks=tuple(range(_RANKS)),
        step_s=1.0,
        parts=_parts(rng),
        overlap=0.25,
        steps=tuple(
            RankStep(rank=rank, step=step, parts=_parts(rng), communication_s=0.3, hidden_s=0.1)
            for step in range(_STEPS)
            for rank in range(_RANKS)
        ),
        collectives=tuple(_collective(number) for number in range(_USES)),
        timeline=Timeline(step=1, seconds=1.0, lanes=tuple(lanes)),
        findings=(
            Finding(
                kind="host_bound",
                evidence="for 39% of the step or more nothing is launched, on every rank",
                measured=0.39,
                threshold=0.3,
                remedy="micro_batch 8 instead of 1",
                knobs={"micro_batch": 8},
                expected_gain=0.34,
            ),
        ),
        recorded=ProfilerRecording(
            folder="work/traces", bytes=1_000_000, steps=3, step_s=1.0, plain_step_s=0.9, elapsed_s=12.0
        ),
    )


def _parts(rng: random.Random) -> StepParts:
    drawn = [rng.random() for _ in PART_NAMES]
    return StepParts(**{f"{name}_s": part / sum(drawn) for name, part in zip(PART_NAMES, drawn, strict=True)})


def _collective(number: int) -> CollectiveFigures:
    return CollectiveFigures(
        kind="all_gather",
        purpose="parameters",
        group_size=_RANKS,
        calls=10 + number,
        message_bytes=4_000_000,
        moved_bytes=20_000_000,
        transferring_s=0.1,
        waiting_s=0.01,
        exposed_s=0.05,
        bytes_per_s=1e8,
    )

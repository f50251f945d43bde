"""Training programs of the laboratory, each as the predictor's fields by number of hosts. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardtune.tuner.prediction.candidates import DDP, FSDP2, MIB, ZERO
from shardtune.tuner.prediction.shapes.config_shape import from_config

BLOCKS = 8
HIDDEN = 128
TOKENS = 64
"""Tokens of one micro batch of a rank."""
FORWARD_S, BACKWARD_S = 0.030, 0.060
"""Seconds that a block waits in forward and in backward, in place of computing `TOKENS` tokens, beside links of
`USUAL_MBIT`."""
USUAL_MBIT = 50
STAGES, STAGE_MICRO_BATCHES = 2, 4
_SMALL_VOCABULARY = 8
"""The programs have no head, so the model's is negligible."""

SHAPE = from_config(
    {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 171,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": _SMALL_VOCABULARY,
        "max_position_embeddings": 2 * TOKENS,
        "tie_word_embeddings": False,
    },
    "paced",
)
"""Model with blocks of half a megabyte, which 50 Mbit/s carry in about the time that a block's backward waits."""
WEIGHTS = int(SHAPE.block_parameters)
BUCKET_MIB = 0.5
"""DDP's bucket, which one block fills."""

Row = dict[str, float]


def slowness(mbit: int) -> float:
    """Factor on the seconds that ranks wait beside links of this bandwidth: communication keeps its share of a step."""
    return USUAL_MBIT / mbit


@dataclass(frozen=True)
class Program:
    """One training program, which gives each rank the same work on any number of hosts."""

    name: str
    label: str
    fields: Callable[[int], Row]
    """Fields of the predictor's candidate on a number of hosts."""
    accumulation: int = 1
    fewest_hosts: int = 1

    def row(self, hosts: int) -> Row:
        """Fields of the predictor's candidate, with the work of one rank."""
        work = {"sequence": TOKENS, "micro_batch": 1, "accumulation": self.accumulation}
        return {**work, **self.fields(hosts)}

    def waiting_s(self, mbit: int) -> float:
        """Seconds that a rank waits in one step, without stages."""
        return self.accumulation * BLOCKS * (FORWARD_S + BACKWARD_S) * slowness(mbit)


def _ddp(hosts: int) -> Row:
    return {"backend": DDP, "replicate": hosts, "ddp_bucket": BUCKET_MIB * MIB, "bucket_view": 1, "sync_last": 1}


def _zero(stage: int) -> Callable[[int], Row]:
    # DeepSpeed's CPU accelerator has no streams, so nothing of its reductions is hidden (`double_buffer` 0).
    buckets = {"reduce_bucket": WEIGHTS, "gather_bucket": WEIGHTS, "prefetch_bucket": WEIGHTS, "max_live": 3 * WEIGHTS}
    fixed = {"backend": ZERO, "stage": stage, "double_buffer": 0, "persistence": 0, "reuse": 0, **buckets}
    return lambda hosts: {**fixed, "shard": hosts, "regather": hosts}


def _fsdp2(hosts: int) -> Row:
    return {"backend": FSDP2, "shard": hosts, "regather": max(2, hosts)}


def _fsdp2_kept(hosts: int) -> Row:
    return {"backend": FSDP2, "shard": hosts, "regather": 1}


def _hsdp(hosts: int) -> Row:
    return {"backend": FSDP2, "shard": min(2, hosts), "regather": 2, "replicate": max(1, hosts // 2)}


def _stages(data_parallel: Callable[[int], Row]) -> Callable[[int], Row]:
    def fields(hosts: int) -> Row:
        half = {"stages": STAGES, "sequence": TOKENS // STAGES, "sync_last": 1}
        return {**data_parallel(hosts // STAGES), **half}

    return fields


_ALL = (
    Program("ddp", "DDP", _ddp),
    Program("ddp-accumulation", "DDP, 2 micro batches", _ddp, accumulation=2),
    Program("zero1", "ZeRO-1", _zero(1)),
    Program("zero2", "ZeRO-2", _zero(2)),
    Program("zero3", "ZeRO-3", _zero(3)),
    Program("fsdp2", "FSDP2, resharded", _fsdp2),
    Program("fsdp2-kept", "FSDP2, kept", _fsdp2_kept),
    Program("hsdp", "HSDP, shards of 2", _hsdp),
    Program("stages-ddp", "2 stages × DDP", _stages(_ddp), STAGE_MICRO_BATCHES, STAGES),
    Program("stages-fsdp2", "2 stages × FSDP2", _stages(_fsdp2), STAGE_MICRO_BATCHES, STAGES),
)
PROGRAMS: Mapping[str, Program] = {program.name: program for program in _ALL}

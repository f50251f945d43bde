"""Every knob of the search: its name, what values it takes, and whether a user may name values the search would not try.

docs/search-space.md explains them; conditions live in tuner.search.space.define_by_run, candidate values in tuner.search.space.domains.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from shardtune.api_schemas.search_space import KnobValue
from shardtune.api_schemas.strategies.fsdp1 import ShardingStrategy

Kind = Literal["bool", "int", "number", "word", "group"]


@dataclass(frozen=True)
class Knob:
    """One dimension of the space."""

    kind: Kind
    """`group` is a boolean or an integer, as `reshard_after_forward` is."""
    backends: tuple[str, ...]
    words: tuple[str, ...] = ()
    minimum: float = 1
    """Of numbers."""
    maximum: float = math.inf
    step: int = 1
    """Integers must be multiples of it."""
    open: bool = False
    """A user's own values replace the search's. Else they only narrow them: a divisor stays a divisor."""
    lightest: KnobValue | Literal["min", "max"] | None = None
    """The value that holds least memory; None where that depends on the rest."""

    def accepts(self, value: KnobValue) -> bool:
        """Whether the value has the right type and range."""
        is_bool, is_int = isinstance(value, bool), isinstance(value, int) and not isinstance(value, bool)
        match self.kind:
            case "bool":
                return is_bool
            case "int":
                return is_int and self._in_range(float(value)) and int(value) % self.step == 0
            case "number":
                return isinstance(value, int | float) and not is_bool and self._in_range(float(value))
            case "group":
                return is_bool or (is_int and int(value) > 1)
            case "word":
                return value in self.words

    def expected(self) -> str:
        """What `accepts` accepts, in words."""
        match self.kind:
            case "bool":
                return "true or false"
            case "group":
                return "true, false or an integer above 1"
            case "word":
                return "one of " + ", ".join(self.words)
            case _:
                kind = "a number" if self.kind == "number" else "an even integer" if self.step == 2 else "an integer"
                return f"{kind} of at least {self.minimum:g}" + (
                    f", at most {self.maximum:g}" if self.maximum < math.inf else ""
                )

    def _in_range(self, value: float) -> bool:
        return self.minimum <= value <= self.maximum


_ALL = ("ddp", "zero", "fsdp2", "fsdp1")
_ZERO = ("zero",)
_FSDP1 = ("fsdp1",)
_FSDP2 = ("fsdp2",)
_FSDP = ("fsdp2", "fsdp1")

KNOBS: dict[str, Knob] = {
    "micro_batch": Knob("int", _ALL),
    "activation_checkpointing": Knob("word", _ALL, ("none", "selective", "full"), lightest="full"),
    "compile": Knob("bool", _ALL, lightest=False),
    "grad_sync": Knob("word", ("ddp", "fsdp2", "fsdp1"), ("every", "reduce_scatter", "last"), lightest="every"),
    "bucket_cap_mb": Knob("int", ("ddp",), maximum=4096, open=True, lightest="min"),
    "gradient_as_bucket_view": Knob("bool", ("ddp",), lightest=True),
    "static_graph": Knob("bool", ("ddp",), lightest=False),
    "stage": Knob("int", _ZERO),
    "reduce_bucket_size": Knob("int", _ZERO, open=True, lightest="min"),
    "allgather_bucket_size": Knob("int", _ZERO, minimum=2, step=2, open=True, lightest="min"),
    "overlap_comm": Knob("bool", _ZERO, open=True, lightest=False),
    "contiguous_gradients": Knob("bool", _ZERO, open=True, lightest=False),
    "round_robin_gradients": Knob("bool", _ZERO, lightest=False),
    "stage3_prefetch_bucket_size": Knob("int", _ZERO, minimum=0, open=True, lightest="min"),
    "stage3_param_persistence_threshold": Knob("int", _ZERO, minimum=0, open=True, lightest="min"),
    "stage3_max_live_parameters": Knob("int", _ZERO, minimum=0, open=True, lightest="min"),
    "stage3_max_reuse_distance": Knob("int", _ZERO, minimum=0, open=True, lightest="min"),
    "sub_group_size": Knob("int", _ZERO, open=True, lightest="min"),
    "zero_hpz_partition_size": Knob("int", _ZERO, lightest="min"),
    "offload_optimizer": Knob("word", _ZERO, ("none", "cpu", "nvme")),
    "offload_optimizer_ratio": Knob("number", _ZERO, minimum=0.01, maximum=1, open=True, lightest="max"),
    "offload_optimizer_pin_memory": Knob("bool", _ZERO, open=True, lightest=False),
    "offload_param": Knob("word", _ZERO, ("none", "cpu", "nvme")),
    "offload_param_pin_memory": Knob("bool", _ZERO, open=True, lightest=False),
    "dp_shard": Knob("int", _FSDP),
    "dp_replicate": Knob("int", _FSDP),
    "reshard_after_forward": Knob("group", _FSDP2, lightest=True),
    "forward_prefetch": Knob("int", _FSDP2, minimum=0, maximum=8, open=True, lightest="min"),
    "backward_prefetch": Knob("int", _FSDP2, minimum=0, maximum=8, open=True, lightest="min"),
    "blocks_per_unit": Knob("int", _FSDP2, lightest="min"),
    "cpu_offload": Knob("bool", _FSDP),
    "pin_memory": Knob("bool", _FSDP2, open=True, lightest=False),
    "sharding_strategy": Knob("word", _FSDP1, get_args(ShardingStrategy)),
    "fsdp1_forward_prefetch": Knob("bool", _FSDP1, open=True, lightest=False),
    "fsdp1_backward_prefetch": Knob(
        "word", _FSDP1, ("BACKWARD_PRE", "BACKWARD_POST", "none"), open=True, lightest="none"
    ),
    "limit_all_gathers": Knob("bool", _FSDP1, open=True, lightest=True),
    "use_orig_params": Knob("bool", _FSDP1, lightest=False),
}

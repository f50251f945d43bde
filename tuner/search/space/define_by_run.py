"""Define-by-run drawing of a configuration, knob by knob: a condition is an `if` over the knobs drawn before.

Sampling, enumeration, membership and reading a configuration use the same code with different functions that choose
values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardtune.api_schemas.strategies.losses import DEFAULT_CHUNK
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.legal_values import COMMON, Flat
from shardtune.tuner.search.space.limits import KnobLimits


@dataclass(frozen=True)
class Question:
    """Knob whose value must be chosen, with its candidate values."""

    knob: str
    param: str
    """Parameter name for the sampler; the same name always has the same candidate values."""
    values: tuple[KnobValue, ...]


Answer = Callable[[Question], KnobValue]


class NoLegalValue(Exception):
    """Error raised where the user's limits leave a knob without a legal value, given the knobs drawn before."""

    def __init__(self, knob: str, candidates: tuple[KnobValue, ...], why_not: str | None = None) -> None:
        super().__init__(knob)
        self.knob, self.candidates, self.why_not = knob, candidates, why_not


class DefineByRun:
    """Drawing of one configuration from the search space, knob by knob; each backend's `draw` chooses the knobs of that
    backend."""

    def __init__(self, domains: Domains, limits: KnobLimits, answer: Answer) -> None:
        self.domains, self.limits, self.answer = domains, limits, answer
        self.table: Flat = {}
        self._checkpointing: tuple[tuple[str, ...], str] = (("none", "selective", "full"), "")

    def run(
        self,
        draw: Mapping[str, Callable[["DefineByRun", bool], None]],
        split: Mapping[str, Callable[["DefineByRun"], int]],
    ) -> Flat:
        """Choose a value for every knob that has an effect; other knobs get their fixed value. Returns the values by
        knob name.

        `draw` and `split` are functions by backend: `split` decides how many ranks split a model, `draw` all other
        knobs of the backend.

        Raises:
            NoLegalValue: no legal value is left for a knob, given the knobs drawn before.
        """
        backend = self.pick("backend", self.limits.backends)
        self._draw_context()
        sharing = int(self.table["context_parallel"]) * split[str(backend)](self)
        stages = int(self.table.get("pipeline_parallel", 1))
        schedule = str(self.table.get("pipeline_schedule", "1f1b"))
        sizes = self.domains.micro_batches(sharing, stages, schedule)
        variant = (f"shared{sharing}" if sharing > 1 else "") + (f"stages{stages}" if stages > 1 else "")
        variant += schedule if sizes != self.domains.micro_batches(sharing, stages) else ""
        micro_batch = int(self.pick("micro_batch", sizes, variant=variant))
        self._draw_loss(micro_batch)
        allowed = self.limits.allow_compile
        compiles = self.domains.on_gpu if allowed is None else allowed
        # `TrialConfig` and `Fsdp2Config` explain why shared samples and divided experts do not compile.
        is_alone = sharing == 1 and self.table.get("expert_parallel", 1) == 1
        self.pick_if("compile", compiles and is_alone, (False, True), False)
        accumulates = self.domains.accumulation(micro_batch, sharing) > 1
        draw[str(backend)](self, accumulates)
        modes, variant = self._checkpointing
        checkpoints = self.pick("activation_checkpointing", modes, variant) != "none"
        self.pick_if("checkpoint_every", checkpoints, self.domains.checkpoint_every, 1)
        self._draw_environment()
        return self.table

    def _draw_loss(self, micro_batch: int) -> None:
        """Choose how the loss is computed: in chunks only where the logits of all tokens take much memory, or where the
        user names it."""
        kinds, why_not = self.domains.losses
        context, tensor = int(self.table["context_parallel"]), int(self.table.get("tensor_parallel", 1))
        matters = self.domains.loss_matters(micro_batch, context * tensor)
        if (matters and why_not is None) or "loss" in self.limits:
            self.pick("loss", kinds, why_not=why_not)
        else:
            self.table["loss"] = "full"
        is_named = self.table["loss"] == "chunked" and "loss_chunk" in self.limits
        self.pick_if("loss_chunk", is_named, self.domains.loss_chunks, DEFAULT_CHUNK)

    def _draw_context(self) -> None:
        """Choose the number of ranks that share a sequence (context parallel)."""
        sizes, why_not = self.domains.context_parallel
        self.pick_if_named("context_parallel", sizes, why_not)

    def pick_if_named(self, knob: str, sizes: tuple[int, ...], why_not: str | None, variant: str = "") -> int:
        """Choose a number of ranks for an axis that is searched only where the user names it; otherwise the number is
        1."""
        self.table[knob] = 1
        return int(self.pick(knob, sizes, variant, why_not)) if knob in self.limits else 1

    def _draw_environment(self) -> None:
        """Choose the environment settings of the ranks, by default only among those known to matter on the device."""
        on_gpu = self.domains.on_gpu
        self.pick_if("malloc", not on_gpu or "malloc" in self.limits, ("default", "keep"), "default")
        self.pick("threads", self.domains.threads)
        self.pick_if("expandable_segments", on_gpu, (False, True), False)
        self.pick_if("max_connections", on_gpu, (0,), 0)
        binds = on_gpu and "numa_binding" in self.limits
        self.pick_if("numa_binding", binds, ("none", "node", "exclusive"), "none")

    def narrow_checkpointing(self, modes: tuple[str, ...], variant: str) -> None:
        """Restrict activation checkpointing to the modes that the backend supports with the knobs drawn so far."""
        self._checkpointing = (modes, variant)

    def pick(
        self, knob: str, candidates: tuple[KnobValue, ...], variant: str = "", why_not: str | None = None
    ) -> KnobValue:
        """Choose a knob's value among the candidates that the user's limits leave.

        `variant` distinguishes candidate sets of one knob. `why_not`: reason why there are no other candidates.
        """
        values = self.limits.restrict(knob, candidates)
        if not values:
            raise NoLegalValue(knob, candidates, why_not)
        backend = self.table.get("backend")
        # A sampler needs the same candidates under the same name, so each set of candidates gets a name of its own.
        param = (knob if knob == "backend" or knob in COMMON else f"{backend}.{knob}") + (
            f"@{variant}" if variant else ""
        )
        self.table[knob] = self.answer(Question(knob, param, values))
        return self.table[knob]

    def fix(self, knob: str, value: KnobValue, candidates: tuple[KnobValue, ...]) -> None:
        """Set a knob that has no effect here: to the user's pinned value where that is legal, else to the value
        given."""
        pinned_value = self.limits.pinned(knob, value)
        self.table[knob] = pinned_value if self.limits.is_open(knob) or pinned_value in candidates else value

    def pick_if(self, knob: str, effective: bool, candidates: tuple[KnobValue, ...], otherwise: KnobValue) -> KnobValue:
        """Choose a knob's value where the knob has an effect, else set its fixed value."""
        if effective:
            return self.pick(knob, candidates)
        self.fix(knob, otherwise, candidates)
        return self.table[knob]

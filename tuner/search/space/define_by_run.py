"""Define-by-run drawing of a configuration, knob by knob: a condition is an `if` over the knobs drawn before.

Sampling, enumeration, membership and reading a configuration use the same code with different functions that choose
values.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from shardtune.api_schemas.knobs import ALWAYS, Knob, When
from shardtune.api_schemas.strategies import losses
from shardtune.api_schemas.strategies.fields import memory_budget, mlp_slices, selective_keeps
from shardtune.api_schemas.strategies.recipe_support import lora_support
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.legal_values import COMMON, Flat
from shardtune.tuner.search.space.limits import KnobLimits
from shardtune.tuner.search.space.questions import Answer, NoLegalValue, Question, param_name


class DrawnBackend(Protocol):
    """Backend whose knobs are drawn; `SearchedBackend` describes its parts."""

    @property
    def knobs(self) -> Mapping[str, Knob]:
        """Knobs that the backend has in addition to the knobs of all backends, in the order in which they are drawn."""

    @property
    def draw(self) -> Callable[["DefineByRun", bool], None]:
        """Function that chooses the values of the backend's knobs whose conditions their declarations cannot state."""

    @property
    def split(self) -> Callable[["DefineByRun"], int]:
        """Function that chooses how many ranks compute one copy of the model."""


class DefineByRun:
    """Drawing of one configuration from the search space, knob by knob; each backend's `draw` chooses the knobs of that
    backend."""

    def __init__(self, domains: Domains, limits: KnobLimits, answer: Answer) -> None:
        self.domains, self.limits, self.answer = domains, limits, answer
        self.table: Flat = {}
        self.is_canonical = True
        """Whether all knobs without effect in this configuration have their fixed values; it is False if the user
        pinned one of them to another value."""
        self.asks_all = True
        """Whether the sampler is asked for a knob's value even if the knob has only one candidate."""
        self.keeps_start = False
        """Whether to keep `start`."""
        self.start: DefineByRun | None = None
        """Copy of this object from before the current step, from which the configuration can be drawn anew; None unless
        `keeps_start` is set."""
        self._step = 0
        self._on_gpu, self._has_peers, self._accumulates = domains.on_gpu, domains.world > 1, False
        self._offloads = limits.requires("activation_offload", True)
        slices_mlp = "mlp_slices" in limits and 1 not in limits.restrict("mlp_slices", mlp_slices.NAMED)
        budgets = limits.restrict("activation_memory_budget", memory_budget.NAMED)
        self.needs_budget = "activation_memory_budget" in limits and 1 not in budgets
        """Whether the user's limits leave only budgets of activations below 1."""
        self.needs_selective = not limits.restrict("selective_keeps", (selective_keeps.DEFAULT,))
        """Whether the user's limits leave only choices of kept results that need selective checkpointing."""
        self._needs_eager = self._offloads or slices_mlp
        self._needs_compiled_loss = limits.requires("loss_compile", True)
        self._knobs: Mapping[str, Knob] = {}
        self._decided: dict[tuple[str, str, bool], bool | None] = {}
        """Conditions that were decided before any value was drawn, by backend, knob, and whether gradients accumulate.
        Copies of the drawing share them."""
        self._checkpointing: tuple[tuple[KnobValue, ...], str] = COMMON["activation_checkpointing"].tries, ""

    def run(self, backends: Mapping[str, DrawnBackend]) -> Flat:
        """Choose a value for every knob that has an effect, and set the other knobs to their fixed values. Return the
        values by knob name.

        Raises:
            NoLegalValue: no legal value is left for a knob, given the knobs drawn before.
        """
        for step in _STEPS[self._step :]:
            if self.keeps_start:
                self.start = self.resume(self.answer)
            step(self, backends)
            self._step += 1
        return self.table

    def resume(self, answer: Answer) -> "DefineByRun":
        """Copy this partly drawn configuration, to draw its remaining knobs with other answers. Most configurations of
        a search repeat the first choices of another one, and a copy saves them the steps of these choices."""
        drawing = DefineByRun.__new__(DefineByRun)
        drawing.__dict__.update(self.__dict__, table=dict(self.table), answer=answer, start=None, keeps_start=False)
        return drawing

    def _draw_mesh(self, backends: Mapping[str, DrawnBackend]) -> None:
        """Choose the backend, and how many ranks share a sample."""
        backend = backends[str(self.pick("backend", self.limits.backends))]
        self._knobs = backend.knobs
        if self.needs_budget:
            self._require_budget(self.domains.why_no_memory_budget)
        self._draw_context()
        self._sharing = int(self.table["context_parallel"]) * backend.split(self)

    def _draw_batch(self, _backends: Mapping[str, DrawnBackend]) -> None:
        """Choose the micro batch, how its loss is computed, and whether blocks are compiled."""
        micro_batch = self._draw_micro_batch(self._sharing)
        self._draw_loss(micro_batch)
        self._draw_compile(self._sharing)
        self._accumulates = self.domains.accumulation(micro_batch, self._sharing) > 1

    def _draw_own(self, backends: Mapping[str, DrawnBackend]) -> None:
        """Choose the values of the backend's own knobs."""
        backends[str(self.table["backend"])].draw(self, self._accumulates)
        self._draw_rest(self._knobs)

    def _draw_checkpointing(self, _backends: Mapping[str, DrawnBackend]) -> None:
        """Choose which activations backward recomputes (activation checkpointing)."""
        modes, variant = (("full",), "offloaded") if self._offloads else self._checkpointing
        why_not = "activation_offload (true) needs it" if self._offloads else None
        if self.needs_budget and not self._offloads:
            modes, variant, why_not = ("none",), "budget", memory_budget.NEEDED
        if self.needs_selective:
            if "selective" not in modes:
                raise NoLegalValue("selective_keeps", (selective_keeps.DEFAULT,), selective_keeps.NEEDS)
            modes, variant, why_not = ("selective",), "kept", selective_keeps.NEEDED
        self.pick("activation_checkpointing", modes, variant, why_not)
        self.draw("checkpoint_every", self.domains.checkpoint_every)

    def _draw_common(self, _backends: Mapping[str, DrawnBackend]) -> None:
        """Choose the values of those knobs of every backend that no earlier step has chosen, such as the allocator and
        the number of threads."""
        self._draw_selective_keeps()
        micro_batch = int(self.table["micro_batch"])
        self._draw_offload(micro_batch)
        self._draw_mlp_slices(micro_batch)
        self._draw_memory_budget()
        self.draw("malloc")
        self.draw("threads", self.domains.threads)
        self._draw_rest(COMMON)

    def _draw_micro_batch(self, sharing: int) -> int:
        stages = int(self.table.get("pipeline_parallel", 1))
        schedule = str(self.table.get("pipeline_schedule", "1f1b"))
        sizes = self.domains.micro_batches(sharing, stages, schedule)
        variant = (f"shared{sharing}" if sharing > 1 else "") + (f"stages{stages}" if stages > 1 else "")
        variant += schedule if sizes != self.domains.micro_batches(sharing, stages) else ""
        return int(self.pick("micro_batch", sizes, variant=variant))

    def _draw_compile(self, sharing: int) -> None:
        """Choose whether the transformer blocks are compiled; they are not where they cannot be compiled as a whole, or where
        the user's limits need uncompiled blocks."""
        backend = str(self.table["backend"])
        if not lora_support.can_compile(backend, self.domains.workload.adapter):
            self.pick("compile", (False,), "eager", lora_support.why_not_compiled(backend))
            return
        # `TrialConfig` and `Fsdp2Config` explain why shared samples and divided experts do not compile.
        is_alone = sharing == 1 and self.table.get("expert_parallel", 1) == 1
        is_free = not self._needs_eager and not self.requires_deepcompile()
        is_possible = self.limits.compiles(self._on_gpu) and is_alone and is_free
        if self.needs_budget:
            self._require_budget(None if is_possible else memory_budget.NEEDS)
            self.pick("compile", (True,), "budget", memory_budget.NEEDED)
        else:
            self.draw("compile", effective=is_possible)

    def _require_budget(self, why_not: str | None) -> None:
        """End a drawing that cannot have the budget which the user's limits require, before knobs are drawn that would
        each end there.

        Raises:
            NoLegalValue: `why_not` says why there is no budget, or the limits require activation checkpointing.
        """
        if why_not is not None:
            raise NoLegalValue("activation_memory_budget", (1.0,), why_not)
        if not self.limits.restrict("activation_checkpointing", ("none",)):
            raise NoLegalValue("activation_checkpointing", ("none",), memory_budget.NEEDED)

    def _draw_loss(self, micro_batch: int) -> None:
        """Choose how the loss is computed: in chunks only where the logits of all tokens take much memory, or where the
        user's limits name this knob or need compiled chunks."""
        kinds, why_not = self.domains.losses
        if self.requires_deepcompile(beside="loss", value="full"):
            kinds = ("full",)
        sharing = int(self.table["context_parallel"]) * int(self.table.get("tensor_parallel", 1))
        matters = why_not is None and self.domains.loss_matters(micro_batch, sharing)
        if self._needs_compiled_loss:
            if "chunked" not in kinds:
                raise NoLegalValue("loss_compile", (False,), why_not or losses.NEEDS)
            self.pick("loss", ("chunked",), "compiled", losses.NEEDED)
        elif matters or "loss" in self.limits:
            self.pick("loss", kinds, "" if len(kinds) > 1 else "whole", why_not)
        else:
            self.table["loss"] = "full"
        self.draw("loss_chunk", self.domains.loss_chunks)
        # On CPU ranks each trial would spend tens of seconds on a compiler, for kernels that save little there.
        is_tried = self._on_gpu and self.limits.compiles(self._on_gpu)
        if self.table["loss"] == "chunked" and (is_tried or "loss_compile" in self.limits):
            self.pick("loss_compile", COMMON["loss_compile"].tries)
        else:
            # Limits that need compiled chunks have ended the drawing where the loss was drawn.
            self.table["loss_compile"] = False

    def _draw_offload(self, micro_batch: int) -> None:
        """Choose where the inputs of checkpointed blocks are kept: in host memory only where they take much of the
        device's memory, or where the user's limits name this knob."""
        table = self.table
        compiles = table.get("compile") is True or table.get("deepcompile") is True
        # `TrialConfig` explains what rules it out.
        is_legal = (
            table["activation_checkpointing"] == "full" and not compiles and table.get("pipeline_parallel", 1) == 1
        )
        is_named = "activation_offload" in self.limits
        sharing = int(table["context_parallel"]) * int(table.get("tensor_parallel", 1))
        if is_legal and (is_named or self.domains.inputs_matter(micro_batch, sharing)):
            self.pick("activation_offload", (False, True))
        elif is_named:
            self.pick(
                "activation_offload", (False,), "kept", "it needs full checkpointing, without compilation or stages"
            )
        else:
            table["activation_offload"] = False

    def _draw_mlp_slices(self, micro_batch: int) -> None:
        """Choose in how many slices of the tokens each block's MLP is computed: in several only where the MLP's
        activations take much of a rank's memory, or where the user's limits name this knob."""
        table, domains = self.table, self.domains
        why_not = domains.why_no_mlp_slices(str(table["backend"]))
        # `TrialConfig` explains what rules it out.
        if table.get("compile") is True or table.get("deepcompile") is True:
            why_not = "it needs blocks that are not compiled"
        if int(table.get("tensor_parallel", 1)) > 1 or int(table.get("pipeline_parallel", 1)) > 1:
            why_not = "it needs tensor_parallel 1 and pipeline_parallel 1"
        if "mlp_slices" in self.limits:
            values, variant = ((1,), "whole") if why_not is not None else (mlp_slices.NAMED, "")
            self.pick("mlp_slices", values, variant, why_not)
        elif why_not is None and domains.mlp_matters(micro_batch, int(table["context_parallel"])):
            self.pick("mlp_slices", COMMON["mlp_slices"].tries)
        else:
            table["mlp_slices"] = 1

    def _draw_selective_keeps(self) -> None:
        """Choose which results selective checkpointing keeps, where the user's limits name this knob."""
        table, knob = self.table, "selective_keeps"
        if knob not in self.limits or table["activation_checkpointing"] != "selective":
            # Limits that need another choice have ended the drawing where the checkpointing was drawn.
            table[knob] = selective_keeps.DEFAULT
            return
        values, why_not = self.domains.kept_results
        variant = "" if len(values) == len(selective_keeps.VALUES) else f"{len(values)}"
        self.pick(knob, values, variant, why_not)

    def _draw_memory_budget(self) -> None:
        """Choose how much of their activations compiled blocks keep, where the user's limits name this knob."""
        table, knob = self.table, "activation_memory_budget"
        if knob not in self.limits:
            table[knob] = 1.0
            return
        # `TrialConfig` explains what rules it out.
        is_legal = table.get("compile") is True and table["activation_checkpointing"] == "none"
        why_not = self.domains.why_no_memory_budget
        if why_not is None and not (is_legal and table.get("stage") != 3):
            why_not = memory_budget.NEEDS
        values, variant = (memory_budget.NAMED, "") if why_not is None else ((1.0,), "whole")
        self.pick(knob, values, variant, why_not)

    def _draw_rest(self, knobs: Mapping[str, Knob]) -> None:
        """Choose a value for each remaining knob whose declaration states its candidate values."""
        defaults = {} if self.asks_all else self.limits.defaults
        for name, knob in knobs.items():
            if name in self.table or not knob.tries:
                continue
            # A search by predictions pins most of them, and `draw` would do the same.
            if name in defaults:
                self.table[name] = defaults[name]
            else:
                self.draw(name)

    def draw(self, name: str, candidates: tuple[KnobValue, ...] = (), effective: bool = True) -> None:
        """Choose a knob's value if its declaration says that it has an effect here; else set its default.

        `candidates`: values to choose from if the declaration states none. `effective`: False if the knob has no effect
        for a reason that the declaration cannot state. A knob that does not exist with the values drawn so far is left
        out.
        """
        if not self.asks_all and name in self.limits.defaults:
            self.table[name] = self.limits.defaults[name]
            return
        knob = self._knobs.get(name) or COMMON[name]
        for other, values in knob.within.items():
            if self.table.get(other) not in values:
                return
        # Every enumeration of the space comes by here thousands of times.
        if effective and (knob.when is ALWAYS or self._holds(name, knob.when)):
            self.pick(name, candidates or knob.tries)
        else:
            self.fix(name, "none" if knob.default is None else knob.default, candidates or knob.tries)

    def _holds(self, name: str, when: When) -> bool:
        key = str(self.table["backend"]), name, self._accumulates
        if key not in self._decided:
            self._decided[key] = when.decided(
                on_gpu=self._on_gpu,
                has_peers=self._has_peers,
                accumulates=self._accumulates,
                is_named=name in self.limits,
            )
        decided = self._decided[key]
        return when.holds_for(self.table) if decided is None else decided

    def _draw_context(self) -> None:
        """Choose the number of ranks that share a sequence (context parallel)."""
        sizes, why_not = self.domains.context_parallel
        self.pick_if_named("context_parallel", sizes, why_not)

    def pick_if_named(self, knob: str, sizes: tuple[int, ...], why_not: str | None, variant: str = "") -> int:
        """Choose the number of ranks of a mesh axis that is searched only if the user names it; otherwise the number is
        1."""
        self.table[knob] = 1
        if knob not in self.limits:
            return 1
        # `TrialConfig` and `Fsdp2Config` explain why ranks that share a sample or a model do not compile.
        if self.needs_budget or self.limits.requires("compile", True):
            sizes, variant, why_not = (1,), "compiled", "compile (true) excludes it"
        elif self.requires_deepcompile(beside=knob, value=1):
            sizes, variant = (1,), "compiled"
        return int(self.pick(knob, sizes, variant, why_not))

    def requires_deepcompile(self, beside: str = "deepcompile", value: KnobValue = True) -> bool:
        """Whether the user's limits permit only configurations with DeepCompile on a backend that has it, and permit
        `value` for the knob `beside`."""
        is_required = "deepcompile" in self._knobs and self.limits.requires("deepcompile", True)
        return is_required and bool(self.limits.restrict(beside, (value,)))

    def narrow_checkpointing(self, modes: tuple[KnobValue, ...], variant: str) -> None:
        """Restrict activation checkpointing to the modes that the backend supports with the knobs drawn so far."""
        self._checkpointing = (modes, variant)

    def pick(
        self, knob: str, candidates: tuple[KnobValue, ...], variant: str = "", why_not: str | None = None
    ) -> KnobValue:
        """Choose a knob's value among the candidates that the user's limits leave.

        `variant` names the set of candidates, for a knob that has several sets. `why_not`: reason why there are no
        other candidates, for the error message.
        """
        values = self.limits.restrict(knob, candidates)
        if not values:
            raise NoLegalValue(knob, candidates, why_not)
        if len(values) == 1 and not self.asks_all:
            value = values[0]
        else:
            value = self.answer(Question(knob, param_name(knob, self.table.get("backend"), variant), values))
        self.table[knob] = value
        return value

    def fix(self, knob: str, value: KnobValue, candidates: tuple[KnobValue, ...]) -> None:
        """Set a knob that has no effect here: to the value that the user pinned if it is legal, else to `value`."""
        pinned_value = self.limits.pinned(knob, value)
        if pinned_value != value and (self.limits.is_open(knob) or pinned_value in candidates):
            self.table[knob], self.is_canonical = pinned_value, False
        else:
            self.table[knob] = value

    def pick_if(self, knob: str, effective: bool, candidates: tuple[KnobValue, ...], otherwise: KnobValue) -> KnobValue:
        """Choose a knob's value where the knob has an effect, else set its fixed value."""
        if effective:
            return self.pick(knob, candidates)
        self.fix(knob, otherwise, candidates)
        return self.table[knob]


_STEPS = (
    DefineByRun._draw_mesh,
    DefineByRun._draw_batch,
    DefineByRun._draw_own,
    DefineByRun._draw_checkpointing,
    DefineByRun._draw_common,
)
"""Steps by which a configuration is drawn, in their order; drawing can be resumed before each step."""

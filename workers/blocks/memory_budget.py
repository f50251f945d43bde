"""Compilation of blocks with a budget for the activations that they keep for backward."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def compiler(budget: float, backend: str) -> str | Callable[..., Any]:
    """Return what compiles blocks with a budget: a backend of `torch.compile`. With a budget of 1 it is `backend`
    itself.

    torch reads the budget from the settings of the process when it divides the graph of a block into forward and
    backward. That happens inside the backend, at the first call of the block. The budget is set there alone: other
    compiled code of the process keeps its own, and nothing has to be restored afterwards. From then on, the process
    compiles blocks under DDP whole.
    """
    if budget == 1:
        return backend
    # Dynamo would divide a block's graph by DDP's buckets, the first of 1 MiB, and each part would have the budget
    # beyond inputs of its own (torch 2.13, `DDPOptimizer`). It reads this setting outside of the backend.
    torch._dynamo.config.optimize_ddp = False
    compile_graph = torch._dynamo.lookup_backend(backend)

    # Under the backend's own name Dynamo treats both alike (torch 2.13, `_is_registered_backend`).
    @functools.wraps(compile_graph)
    def compile_within_budget(graph: Any, inputs: Any, **options: Any) -> Any:
        # torch's caches of compiled graphs keep one entry for each budget (torch 2.13, `AOTAutogradCacheDetails`).
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return compile_graph(graph, inputs, **options)

    return compile_within_budget

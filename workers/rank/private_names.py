"""Private names of torch, DeepSpeed and transformers that ranks use, and the error of a version that lacks one.

Such a name may change in any release. `tests/rank/test_private_names.py` looks for each in the installed versions, and
`make test-versions` runs it with several of them.
"""

import contextlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

READ_IN: Mapping[str, tuple[str, ...]] = {
    "torch": ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
    "deepspeed": ("0.19.8",),
    "transformers": ("5.23.0",),
}
"""Versions of each library in whose sources the names were read."""
TESTED: Mapping[str, str] = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}
"""Versions with which all tests run, as in constraints.txt."""
_PIPELINING, _FAKE = "torch.distributed.pipelining", "torch._subclasses.fake_tensor"
_TRACKER = "torch.distributed._tools.mem_tracker.MemTracker"
NAMES: Mapping[str, tuple[str, ...]] = {
    "the allocator's settings": ("torch._C._accelerator_setAllocatorSettings",),
    "numa_binding": ("torch.numa.binding._maybe_apply_numa_binding_to_current_process",),
    "the history of a GPU's allocator": ("torch.cuda.memory._record_memory_history", "torch.cuda.memory._snapshot"),
    "the memory of CPU ranks": (
        "torch._C._autograd._disable_profiler",
        "torch._C._autograd._enable_profiler",
        "torch._C._autograd._prepare_profiler",
        "torch._C._profiler.ProfilerActivity",
        "torch._C._profiler.ProfilerConfig",
        "torch._C._profiler.ProfilerState",
        "torch._C._profiler.RecordScope",
        "torch._C._profiler._ExperimentalConfig",
    ),
    "the dtypes of a processor": (
        "torch.cpu._is_avx512_bf16_supported",
        "torch.ops.mkldnn._is_mkldnn_bf16_supported",
        "torch.ops.mkldnn._is_mkldnn_fp16_supported",
    ),
    "the recorder of a step's memory": (
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree.tree_leaves",
        "torch.utils._pytree.tree_map",
    ),
    "tensors without values": (
        f"{_FAKE}.FakeTensor",
        f"{_FAKE}.FakeTensorMode",
        f"{_FAKE}.DataDependentOutputException",
        f"{_FAKE}.DynamicOutputShapeException",
        f"{_FAKE}.UnsupportedFakeTensorException",
        f"{_FAKE}.UnsupportedOperatorException",
        "torch.library._scoped_library",
        "torch.ops.aten._scaled_dot_product_fused_attention_overrideable",
        "torch.ops.aten.scaled_dot_product_attention.default._op_dk",
        "torch._C.DispatchKey",
    ),
    "rehearsals": (
        _TRACKER,
        # A rehearsal overrides these four.
        f"{_TRACKER}._pre_fw_hook",
        f"{_TRACKER}._post_fw_hook",
        f"{_TRACKER}._pre_bw_hook",
        f"{_TRACKER}._post_bw_hook",
        "torch.distributed.distributed_c10d._world",
        "torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached",
        "torch.ops.c10d._reduce_scatter_base_",
        "torch.testing._internal.distributed.fake_pg.FakeStore",
        f"{_PIPELINING}.schedules._PipelineSchedule",
    ),
    "the store of a launch": ("torch._C._distributed_c10d.TCPStore",),
    "DeepSpeed's operators": (
        "torch.utils.cpp_extension._get_build_directory",
        "torch.utils.cpp_extension._import_module_from_library",
        "deepspeed.ops.op_builder.CPUAdamBuilder._loaded_ops",
    ),
    "DeepSpeed without NVML": ("deepspeed.accelerator.cuda_accelerator.CUDA_Accelerator._init_pynvml",),
    "ZeRO-3": ("deepspeed.zero.Init._convert_to_deepspeed_param",),
    "FSDP2": (
        "torch.distributed.fsdp._fully_shard._fully_shard._get_post_forward_mesh_info",
        "torch.distributed.tensor._utils.compute_local_shape_and_global_offset",
    ),
    "context_parallel": ("torch.distributed._functional_collectives.all_to_all_single_autograd",),
    "expert_parallel": ("torch.utils._python_dispatch._disable_current_modes", "torch._foreach_div_"),
    "pipeline_parallel": (
        f"{_PIPELINING}._backward.stage_backward",
        # The stage of a sharded pipeline overrides these two.
        f"{_PIPELINING}.PipelineStage.backward_maybe_with_nosync",
        f"{_PIPELINING}.PipelineStage.perform_reduce_grad",
    ),
    "fp16-mixed": ("torch.amp.GradScaler._unscale_grads_",),
    "mlp_slices": ("torch.nn.modules.dropout._DropoutNd", "torch.nn.modules.batchnorm._NormBase"),
    "activation_memory_budget": (
        "torch._functorch.config.activation_memory_budget",
        "torch._functorch.config.patch",
        "torch._dynamo.config.optimize_ddp",
        "torch._dynamo.lookup_backend",
    ),
    "quantization": ("torch.nn.Module._save_to_state_dict",),
    "compile": (
        "torch._dynamo.config.fail_on_recompile_limit_hit",
        "torch._dynamo.maybe_mark_dynamic",
        "torch._dynamo.trace_rules.add",
        "torch._dynamo.utils.counters",
        "torch._dynamo.utils.get_compilation_metrics",
        "torch._dynamo.utils.set_compilation_metrics_limit",
    ),
    "named models": ("transformers.AutoModelForCausalLM._model_mapping",),
}
"""Full names that each part of a rank needs. Names that the code does without are left out, such as `_warmup_p2p`, and so
are attributes of tensors, modules and storages (`_parameters`, `_version`, `_cdata`)."""
_USES = {name: use for use, names in NAMES.items() for name in names}
_IMPORTED = re.compile(r"cannot import name '(\w+)'")
_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")


class LibraryVersionError(ImportError):
    """Exception for an installed version of a library that lacks a private name which ranks need."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Context for imports of the code of ranks.

    Raises:
        LibraryVersionError: the installed version of a library lacks a private name.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        if (text := explanation(error)) is None:
            raise
        raise LibraryVersionError(text) from error


def is_there(name: str) -> bool:
    """Whether the installed version of a library has a name; imports its module."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def explanation(error: BaseException, is_there: Callable[[str], bool] = is_there) -> str | None:
    """Sentence with the name that a library lacks, the versions that have it and the remedy. None if the error has
    another cause."""
    name = _missing_name(error)
    # Code of users may use an attribute of the same name.
    if name is None or is_there(name):
        return None
    library = name.partition(".")[0]
    return (
        f"{library} ({_installed(library)}) has no `{name}`, which Shardtune needs for {_USES[name]}; it was read in {library} "
        f"{', '.join(READ_IN[library])}: install {library}=={TESTED[library]}, with which the tests run"
    )


def _missing_name(error: BaseException) -> str | None:
    """Name of `NAMES` that an import or a look-up did not find."""
    if isinstance(error, ImportError):
        imported = _IMPORTED.search(str(error))
        path = f"{error.name}.{imported[1]}" if imported else error.name or ""
        # A whole library that is missing, such as `deepspeed`, is no question of its version.
        return next((name for name in _USES if "." in path and f"{name}.".startswith(f"{path}.")), None)
    if isinstance(error, AttributeError):
        looked_up = _ATTRIBUTE.search(str(error))
        attribute = error.name or (looked_up[1] if looked_up else "")
        # Public names, such as `add`, are missing for other reasons too.
        ends = [name for name in _USES if attribute.startswith("_") and name.endswith(f".{attribute}")]
        return next(iter(ends), None)
    return None


def _installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "version unknown"

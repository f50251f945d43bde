"""Export as `train_snippet.py`: a complete training script that trains as the trial did, as a starting point for the
reader's own script."""

from shardtune.api_schemas.formatting import counted, rate
from shardtune.tuner.export import (
    adapters,
    context,
    experts,
    losses,
    optimizers,
    pipeline,
    sample_lengths,
    tensor,
)
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends import memory_budget, mlp_slices, selective
from shardtune.tuner.export.backends.common import prepare_blocks
from shardtune.tuner.export.backends.record import SnippetParts
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.environment import command_prefix
from shardtune.tuner.export.launch import torchrun_options
from shardtune.tuner.export.precision import float8, quantization
from shardtune.tuner.export.quoting import in_docstring, literal, remark
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

_UPLOAD = ".pin_memory().to(device, non_blocking=True)"
"""Source of the copy of a micro batch to the GPU. It pins the memory first, as a copy from pageable memory ends with a
wait for the stream (torch 2.13, `memcpy_and_sync`), in each micro batch."""

_ON_CPU = (
    "for step in range(steps):",
    "    started = time.perf_counter()",
    "    report(step, trainer.step(data), time.perf_counter() - started)",
)
_ON_GPU = (
    "# Each step's figures are read once the next is under way: to read them is to wait for the device.",
    "ends, figures = [torch.cuda.Event(enable_timing=True)], []",
    "ends[0].record()",
    "for step in range(steps + 1):",
    "    if step < steps:",
    "        figures.append(trainer.step(data))",
    "        ends.append(torch.cuda.Event(enable_timing=True))",
    "        ends[-1].record()",
    "    if step > 0:",
    "        ends[step].synchronize()",
    "        report(step - 1, figures[step - 1], ends[step - 1].elapsed_time(ends[step]) / 1000)",
)


def source(source: ExportSource, backends: Backends = BACKENDS) -> str:
    """Text of the exported training script `train_snippet.py`."""
    workload = source.workload
    parts = backends[source.config.backend].snippet(source, source.config.strategy)
    return fill(
        "train_snippet.py",
        origin=source.origin,
        model_name=in_docstring(source.study.spec.model.name),
        description=in_docstring(source.description),
        figures=_figures(source),
        needs=parts.needs,
        command=f"{command_prefix(source)}torchrun {torchrun_options(source)} train_snippet.py --steps 10",
        standard=_standard_imports(source, parts),
        abstract="Callable, Iterator, Sequence" if _names_callables(source) else "Iterator, Sequence",
        imports=_imports(source, parts),
        ranks=source.cluster.world_size,
        micro_batch=source.config.micro_batch,
        **_sample_groups(source),
        text_part='["text_config"]' if source.is_text_part else "",
        upload=".to(device)" if source.on_cpu else _UPLOAD,
        accumulation=source.accumulation,
        global_batch=workload.global_batch,
        sequence_length=f"{workload.sequence_length}{sample_lengths.row_remark(source)}",
        rows=indent(sample_lengths.loader_remark(source), 4),
        optimizer="\n".join(optimizers.exported(source).constants(workload.optimizer)),
        constants=_constants(source, parts),
        seed=workload.seed,
        build=indent(_build_lines(source, parts), 4),
        checkpointing=_helpers(source, parts),
        trainer=parts.trainer,
        join=indent([*_join_lines(source), *parts.join], 4),
        steps=indent(_steps(source), 4),
        leave=indent(_exit_lines(source), 4),
    )


def _names_callables(source: ExportSource) -> bool:
    return tensor.is_split(source) or offload.uses_streams(source) or mlp_slices.are_used(source)


def _sample_groups(source: ExportSource) -> dict[str, str]:
    """Expressions that the script's template needs where several ranks train on the same samples (context, tensor or
    pipeline parallelism), such as `RANKS / TENSOR` for the number of groups of such ranks."""
    near = [*(["CONTEXT"] if context.is_shared(source) else []), *(["TENSOR"] if tensor.is_split(source) else [])]
    names = [*near, *(["STAGES"] if pipeline.has_stages(source) else [])]
    if not names:
        return {"groups": "RANKS", "taker": "rank", "seconds": "seconds", "data_rank": "dist.get_rank()"}
    product = _product(names)
    # Stages are the outermost axis of the mesh, so ranks of one stage are contiguous.
    rank = "dist.get_rank() % (RANKS // STAGES)" if pipeline.has_stages(source) else "dist.get_rank()"
    return {
        "groups": f"RANKS / {product}",
        "taker": "group of ranks" if pipeline.has_stages(source) else f"{product}-th rank",
        "seconds": f"({' * '.join(names)} * seconds)",
        "data_rank": f"{rank} // {_product(near)}" if near else rank,
    }


def _product(names: list[str]) -> str:
    return f"({' * '.join(names)})" if len(names) > 1 else "".join(names)


def _figures(source: ExportSource) -> str:
    """Describe what was measured and what the script leaves out, as text that is safe in a docstring."""
    # Escaped apart: each line has a limit of its own.
    notes = (f"{line}." for line in sample_lengths.snippet_notes(source))
    return "\n".join(in_docstring(line) for line in (_describe_measurement(source), *notes))


def _describe_measurement(source: ExportSource) -> str:
    contender, memory = source.contender, ""
    if contender.peak_allocated_gib is not None:
        memory = f", {contender.peak_allocated_gib:.3g} GiB allocated at the peak"
    runs = counted(contender.runs, "run")
    speed = f"{rate(contender.tokens_per_s_per_gpu)} tokens/s/GPU"
    if source.is_projected:
        return f"Projected to {source.machines}, where nothing was measured: {speed}{memory}."
    return f"Measured on {source.machines}: {speed}{memory} ({runs})."


def _steps(source: ExportSource) -> list[str]:
    """Lines of the exported script that run the steps, and collect garbage between them as the trial did."""
    lines, every = list(_ON_CPU if source.on_cpu else _ON_GPU), source.config.gc_every
    if not every:
        return lines
    # Python would collect on each rank at another step, and the others would wait.
    collect = [f"    if (step + 1) % {every} == 0:", "        gc.collect(1)"]
    return ["gc.disable()", *lines, *collect]


def _standard_imports(source: ExportSource, parts: SnippetParts) -> str:
    names = ["argparse", "json", "os", *parts.standard]
    names += ["sys", "time"] if source.on_cpu else []
    names += ["gc"] if source.config.gc_every else []
    names += selective.standard(source)
    names += offload.standard(source)
    names += tensor.STANDARD if tensor.is_split(source) else []
    return "\n".join(f"import {name}" for name in sorted({*names}))


def _imports(source: ExportSource, parts: SnippetParts) -> str:
    torch_modules = ("torch", *memory_budget.modules(source), "torch.distributed as dist")
    modules = (*quantization.modules(source), *parts.modules, *torch_modules, "transformers")
    named = [*parts.imports, *sample_lengths.imports(source)]
    if source.config.activation_checkpointing == "full":
        named.append("from torch.utils.checkpoint import checkpoint")
    elif selective.is_used(source):
        named.append(
            "from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts"
        )
    if context.is_shared(source):
        named += context.IMPORTS
    named += losses.imports(source, tensor.is_split(source))
    named += adapters.imports(source)
    named += float8.imports(source)
    if tensor.is_split(source):
        named += tensor.IMPORTS
    if experts.is_divided(source):
        named += experts.IMPORTS
    return "\n".join([*(f"import {name}" for name in modules), *sorted(_with_one_import_each(named))])


_SHARED_MODULES = ("torch.distributed.device_mesh", "torch.nn.functional")
"""Modules from which several features of the exported script import names."""


def _with_one_import_each(lines: list[str]) -> set[str]:
    """Import lines with only one import from each shared module: the longest, which includes the names of the others."""
    kept = {*lines}
    for module in _SHARED_MODULES:
        imports = [line for line in lines if line.startswith(f"from {module} import ")]
        kept = kept - {*imports} | {*sorted(imports, key=len)[-1:]}
    return kept


def _constants(source: ExportSource, parts: SnippetParts) -> str:
    lines = [*context.constants(source), *tensor.constants(source), *pipeline.constants(source)]
    lines += [
        *experts.constants(source),
        *losses.constants(source),
        *mlp_slices.constants(source),
        *float8.constants(source),
        *parts.constants,
    ]
    needs_blocks = (
        float8.is_used(source)
        or quantization.is_used(source)
        or parts.needs_blocks
        or optimizers.exported(source).needs_blocks
        or adapters.needs_blocks(source)
    )
    if needs_blocks or prepare_blocks(source):
        block_class = remark(source.model_summary.block_class)
        lines.append(f"BLOCKS = {literal(source.block_list)}  # the list of repeated {block_class}")
    return "\n".join(lines)


def _build_lines(source: ExportSource, parts: SnippetParts) -> list[str]:
    where, dtype = None, torch_dtype(source.workload.precision.master_dtype)
    on_meta = parts.on_meta or quantization.is_used(source)
    if on_meta:
        # Built without memory: parameters get their values only after sharding, so no rank ever holds the whole model.
        where = 'with torch.device("meta"):'
    elif parts.on_device is not None and not source.on_cpu:
        # Else each rank draws the whole model's random numbers in host memory: 8 × 32 GB and minutes for 8B.
        where, dtype = 'with torch.device("cuda"):  # this rank\'s, see main', parts.on_device
    lines = [
        "model = transformers.AutoModelForCausalLM.from_config(",
        f"    config, attn_implementation={literal(source.attention)}, dtype={dtype}, trust_remote_code=False",
        ")",
    ]
    built = lines if where is None else [where, *(f"    {line}" for line in lines)]
    return [*built, *adapters.build_lines(source, on_meta), *_prepared(source)]


def _prepared(source: ExportSource) -> list[str]:
    shared = ['model.set_attn_implementation("context")'] if context.is_shared(source) else []
    return [*shared, *losses.build_lines(source), *float8.build_lines(source), *sample_lengths.build_lines(source)]


def _helpers(source: ExportSource, parts: SnippetParts) -> str:
    mode, checkpointing = source.config.activation_checkpointing, ""
    if source.config.activation_offload:
        checkpointing = offload.helpers(source)
    elif selective.is_used(source):
        checkpointing = selective.helpers(source)
    elif mode != "none":
        checkpointing = fill(f"checkpointing_{mode}")
    shared = (
        losses.helpers(source, tensor.is_split(source))
        + context.helpers(source)
        + tensor.helpers(source)
        + pipeline.helpers(source)
    )
    shared += experts.helpers(source)
    shared += optimizers.exported(source).helpers(experts.is_divided(source))
    shared += quantization.helpers(source)
    return (mlp_slices.helpers(source) + checkpointing + shared + parts.helpers).removesuffix("\n")


def _exit_lines(source: ExportSource) -> list[str]:
    if not source.on_cpu:
        return ["dist.destroy_process_group()"]
    return [
        "sys.stdout.flush()",
        "# Gloo's threads can abort the process while the interpreter winds down (torch 2.13 on a busy machine, now and",
        "# then), and DeepSpeed and meshes keep them alive: leave without winding down.",
        "os._exit(0)",
    ]


def _join_lines(source: ExportSource) -> list[str]:
    lines = ['device = torch.device("cpu")']
    if not source.on_cpu:
        lines = ['device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))', "torch.cuda.set_device(device)"]
        # gloo beside NCCL: offloaded states are tensors on the CPU.
        # A single rank is not bound to its device: NCCL would split a communicator of one rank (see `workers.rank.mesh`).
        bound = ", device_id=device" if source.cluster.world_size > 1 else ""
        lines.append(f'dist.init_process_group("cpu:gloo,cuda:nccl"{bound})')
    else:
        lines += ['os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")'] if source.cluster.nodes == 1 else []
        lines.append('dist.init_process_group("gloo")')
    return lines + (["share_attention(device)"] if context.is_shared(source) else [])

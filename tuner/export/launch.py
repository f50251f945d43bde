"""Exported launch scripts. `launch.sh`: one line for torchrun, one for Accelerate, with checks. `launch.sbatch`: the
same on several nodes under Slurm."""

import shlex

from shardtune.tuner.export import environment
from shardtune.tuner.export.backends.registry import BACKENDS
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill, indent

_INTERPRETER = 'python="${PYTHON:-python}"\n'
"""Line of `launch.sh` and `confirm.sbatch` that chooses the Python interpreter."""
_HAS_MODULE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"


def with_fallback(script: str, interpreter: str, module: str = "torch") -> str:
    """Add lines to a launch script that fall back to the Python interpreter of the measurement where `python` lacks the
    module. This is for files that stay on the machine that measured, or on hosts with the same installation."""
    # Only that machine has this path: the service, which makes the file, does not know where its reader runs it.
    quoted = shlex.quote(interpreter)
    fallback = (
        f'if [ -z "${{PYTHON:-}}" ] && [ -x {quoted} ] && ! "$python" -c {shlex.quote(_HAS_MODULE.format(module=module))} 2>/dev/null; then\n'
        f"    python={quoted}  # measured this configuration; `python` is another one, without {module}\n"
        "fi\n"
    )
    return script.replace(_INTERPRETER, _INTERPRETER + fallback, 1)


_ACCELERATE_USAGE = """
#   ./launch.sh accelerate SCRIPT [ARGS...]  your own script that uses accelerate.Accelerator, under accelerate launch"""


def script(source: ExportSource) -> str:
    """Text of the exported launch script `launch.sh`."""
    multi_node = source.cluster.nodes > 1
    return fill(
        "launch.sh",
        origin=source.origin,
        description=remark(source.description),
        machines=remark(source.machines),
        multi_node="\n# Run it on every node, with MASTER_ADDR the first node's address." if multi_node else "",
        environment="\n".join(_environment_lines(source)),
        accelerate_usage="" if _ignored_by_accelerate(source) else _ACCELERATE_USAGE,
        accelerate=indent(_accelerate_lines(source), 4),
        torchrun=torchrun_options(source),
    )


def batch_script(source: ExportSource) -> str:
    """Text of the exported Slurm job script, which runs `launch.sh` on every node."""
    cluster = source.cluster
    return fill(
        "launch.sbatch",
        origin=source.origin,
        description=remark(source.description),
        machines=remark(source.machines),
        nodes=str(cluster.nodes),
        gpus="" if source.on_cpu else f"\n#SBATCH --gpus-per-node={cluster.gpus_per_node}",
    )


def torchrun_options(source: ExportSource) -> str:
    """Command-line options of `torchrun` for the exported configuration's cluster."""
    cluster, binding = source.cluster, environment.torchrun_binding(source)
    ranks = f"--nproc-per-node {cluster.gpus_per_node}{binding and ' '}{binding}"
    if cluster.nodes == 1:
        return f"--standalone {ranks}"
    rendezvous = '--rdzv-id shardtune --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:29500"'
    return f"--nnodes {cluster.nodes} {ranks} {rendezvous}"


def _environment_lines(source: ExportSource) -> list[str]:
    lines = []
    if source.cluster.nodes > 1:
        lines.append(': "${MASTER_ADDR:?set MASTER_ADDR to the address of the first node}"')
    if source.on_cpu:
        lines.append("export CUDA_VISIBLE_DEVICES=")
        if source.cluster.nodes == 1:
            lines.append("export GLOO_SOCKET_IFNAME=lo")
    return [*lines, *environment.shell_lines(source)]


def _ignored_by_accelerate(source: ExportSource) -> str | None:
    """Part of the configuration that `accelerate launch` ignores on CPU ranks; None if it ignores nothing here."""
    if not source.on_cpu:
        return None
    return BACKENDS[source.config.backend].accelerate(source, source.config.strategy).ignored_on_cpu


def _accelerate_lines(source: ExportSource) -> list[str]:
    ignored = _ignored_by_accelerate(source)
    if ignored is not None:
        message = (
            f"accelerate ignores {ignored} on CPU ranks and would train whole replicas; run ./launch.sh without it"
        )
        return [f"echo {shlex.quote(message)} >&2", "exit 2"]
    parts = BACKENDS[source.config.backend].accelerate(source, source.config.strategy)
    lines = []
    command = '"$python" -m accelerate.commands.launch --config_file "$here/accelerate.yaml"'
    if source.on_cpu:
        # Without mpirun, accelerate starts one process for MULTI_CPU; its GPU launcher starts all of them.
        lines.append("export ACCELERATE_USE_CPU=true")
        command += " --multi_gpu"
    if source.cluster.nodes > 1:
        command += ' --main_process_ip "$MASTER_ADDR" --main_process_port 29500 --machine_rank "${NODE_RANK:?}"'
    else:
        command += " --main_process_port 0"  # any free port: another job may hold the default
    lines += parts.launch
    if parts.accumulates:
        lines.append(f"export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={source.accumulation}")
    return [*lines, f'exec {command} "$@"']

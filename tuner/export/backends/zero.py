"""DeepSpeed ZeRO's parts of each exported file: DeepSpeed's JSON expresses nearly all settings."""

import json
from typing import Any

from shardtune.api_schemas.strategies import ZeroConfig
from shardtune.tuner.export import adapters, context, environment, optimizers
from shardtune.tuner.export.backends import common
from shardtune.tuner.export.backends.record import AccelerateParts, ConsumerParts, ExportedBackend, SnippetParts
from shardtune.tuner.export.precision import loss_scale, quantization
from shardtune.tuner.export.quoting import literal
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent
from shardtune.tuner.export.trial_rendering import pretty


def _document(source: ExportSource, strategy: ZeroConfig) -> dict[str, Any]:
    config = source.config
    return strategy.to_deepspeed(source.workload, config.micro_batch, source.accumulation, config.context_parallel)


def _files(source: ExportSource, strategy: ZeroConfig) -> dict[str, str]:
    files = {"ds_config.json": json.dumps(_document(source, strategy), indent=2) + "\n"}
    # DeepSpeed's launcher reads .deepspeed_env for ranks on other nodes; ranks on its own node inherit the environment.
    return files | ({".deepspeed_env": environment.env_file(source)} if source.cluster.nodes > 1 else {})


def _snippet(source: ExportSource, strategy: ZeroConfig) -> SnippetParts:
    imports = ["from deepspeed.ops.adam import DeepSpeedCPUAdam"] if strategy.offload_optimizer else []
    constants = ['DS_CONFIG = Path(__file__).with_name("ds_config.json")']
    if source.on_cpu:
        constants.append(
            "deepspeed.ops.__compatible_ops__ = {}  # else it compiles collectives that training does not use"
        )
        if loss_scale.is_used(source):
            constants.append(
                "deepspeed.get_accelerator().is_fp16_supported = lambda: True  # emulated without float16 units, as measured"
            )
    if source.config.compile:
        constants.append(
            'torch._dynamo.trace_rules.add("deepspeed")  # its hooks run inside the blocks and are not compiled'
        )
    if strategy.stage == 3:
        imports += ["from deepspeed.utils import set_z3_leaf_modules"] if source.model_summary.moe_class else []
        imports.append("from transformers.integrations import HfDeepSpeedConfig")
        constants.append(
            "SHARDED = HfDeepSpeedConfig(str(DS_CONFIG))  # while it lives, transformers builds models sharded"
        )
    return SnippetParts(
        trainer=_trainer(source, strategy),
        imports=tuple(imports),
        modules=("deepspeed",),
        constants=tuple(constants),
        join=("deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, verbose=False)",),
        needs=" and ds_config.json",
        # Stages 1 and 2 keep whole weights in this dtype; stage 3 builds them sharded, inside of transformers.
        on_device=torch_dtype(source.workload.precision.weights_dtype) if strategy.stage < 3 else None,
    )


def _trainer(source: ExportSource, strategy: ZeroConfig) -> str:
    prepare = common.prepare_blocks(source)
    if strategy.stage == 3 and source.model_summary.moe_class:
        # The router picks other experts on every rank; hooks inside would gather in different orders and hang.
        prepare.append(f"set_z3_leaf_modules(model, [{literal(source.model_summary.moe_class)}])")
    # Its moments are float32 by default, whatever the masters are.
    states = ", fp32_optimizer_states=False" if source.has_low_states else ""
    on_host = f"DeepSpeedCPUAdam(parameters, adamw_mode=True{states}, **ADAMW)"
    on_device = optimizers.make(source, "parameters", "model.get_submodule(BLOCKS)", shard="dist.get_rank()")
    return fill(
        "trainer_zero",
        place=indent(quantization.place_lines(source, []), 8),
        prepare=indent([*adapters.zero_lines(source, "model", quantization.is_used(source)), *prepare], 8),
        optimizer=on_host if strategy.offload_optimizer is not None else on_device,
        compile="\n        self.engine.compile()" if strategy.deepcompile else "",
        loss=context.loss(source, "self.engine"),
    )


def _accelerate(source: ExportSource, strategy: ZeroConfig) -> AccelerateParts:
    # By itself Accelerate asks pdsh to reach the other nodes, although launch.sh runs on each of them (1.15).
    launcher = {"deepspeed_multinode_launcher": "standard"} if source.cluster.nodes > 1 else {}
    return AccelerateParts(
        values={
            "distributed_type": "DEEPSPEED",
            # Accelerate rejects mixed_precision beside a DeepSpeed file.
            "mixed_precision": None,
            "deepspeed_config": {
                "deepspeed_config_file": "ds_config.json",
                **launcher,
                "zero3_init_flag": strategy.stage == 3,
            },
        },
        accumulates=False,
        ignored_on_cpu="DeepSpeed",
        script_lines=("engine.compile() on what accelerator.prepare returned",) if strategy.deepcompile else (),
        launch=('cd "$here" # ds_config.json is named relative to it',),
    )


def _training_arguments(source: ExportSource, strategy: ZeroConfig) -> ConsumerParts:
    return ConsumerParts(strategy, common.ignored_on_cpu(source))


def _lightning(source: ExportSource, strategy: ZeroConfig) -> ConsumerParts:
    document = _document(source, strategy)
    # Lightning rejects or overwrites keys that its Trainer sets itself.
    for key in ("gradient_accumulation_steps", "train_batch_size", "gradient_clipping"):
        document.pop(key)
    return ConsumerParts(
        # DeepCompile starts with a call of the engine's `compile`, which Lightning does not make.
        strategy=strategy.as_run_by("lightning"),
        notes=common.not_on_cpu(source, "Lightning"),
        values={
            "class": "DeepSpeedStrategy",
            "strategy": f"DeepSpeedStrategy(config={pretty(document)})",
            "casts": source.casts_weights,
        },
    )


BACKEND = ExportedBackend[ZeroConfig](_snippet, _accelerate, _training_arguments, None, _lightning, _files)

"""Keys of the fine-tuning tools that change no step, and keys that change what is trained.

Each is listed by its name: a prefix would hide a key such as `lora_modules_to_save`, which trains further weights.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from shardtune.tuner.baseline.tools import quantization

_PREFIXES: tuple[str, ...] = (
    *("dataset", "dataloader", "val_", "eval", "hub_", "wandb_", "mlflow_", "comet_", "swanlab", "save", "logging_"),
    *("log_", "chat_template", "special_tokens", "generation_", "generate_samples", "test_datasets", "lm_eval_"),
)
"""Prefixes of keys for data, logging, evaluation and saving, which change no training step."""
_MODEL = frozenset(["base_model", "model_name_or_path", "model", "model_revision", "revision_of_model", "use_hf"])
_MODEL |= {"tokenizer_type", "model_type", "trust_remote_code", "torch_dtype", "strict", "use_cpu", "ENV"}
_MODEL |= {"attn_implementation", "attn_impl", "flash_attn", "gradient_checkpointing_kwargs", "use_reentrant_gc"}
_DATA = frozenset(["template", "stage", "do_train", "cutoff_len", "sequence_len", "max_length", "type", "data_seed"])
_DATA |= {"overwrite_cache", "overwrite_output_dir", "max_samples", "preprocessing_num_workers", "plot_loss"}
_DATA |= {"data_shared_file_system", "report_to", "output_dir", "add_version", "excess_length_strategy"}
_ADAPTER = frozenset(["adapter", "finetuning_type", "tuner_type", "target_modules", "use_rslora", "peft_use_rslora"])
_ADAPTER |= {"use_dora", "peft_use_dora"}
_ADAPTER |= {"lora_r", "lora_rank", "lora_alpha", "lora_dropout", "lora_target", "lora_target_modules"}
_ADAPTER |= {"lora_target_linear", "freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"}
_ADAPTER |= {"freeze_parameters", "freeze_parameters_ratio", "freeze_parameters_regex", "trainable_parameters"}
_ADAPTER |= {"trainable_parameters_regex", "unfrozen_parameters", "target_regex", "target_parameters"}
_TOWERS = frozenset(["freeze_vit", "freeze_aligner", "freeze_vision_tower", "freeze_multi_modal_projector"])
"""Switches that freeze the image parts of a multimodal model; they have no effect on a text model."""
_SILENT = _MODEL | _DATA | _ADAPTER | _TOWERS | quantization.SILENT
_SWITCHES = frozenset(["lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"])
"""Switches for kernels that trials do not have; a note is given where one is on."""

_METHODS = frozenset(["rl", "reward_model", "process_reward_model", "diffusion_lm", "ebft", "use_onebitllms"])
_METHODS |= {"use_llama_pro", "mixture_of_depths", "mixlora_num_experts", "use_kt", "use_mca", "use_hyper_parallel"}
_METHODS |= {"fp8", "quantize_moe_experts", "context_parallel", "diffusion", "diffusion_decision", "mora"}
_WEIGHTS = frozenset(["lora_modules_to_save", "modules_to_save", "additional_target", "lora_target_parameters"])
_WEIGHTS |= {"lora_rank_pattern", "lora_alpha_pattern", "peft_layers_to_transform", "peft_layers_pattern"}
_WEIGHTS |= {"peft_layer_replication", "peft_trainable_token_indices", "lora_bias", "relora", "freeze_llm"}
_WEIGHTS |= {"freeze_language_model", "lisa_n_layers", "lisa_activated_layers"}
_WEIGHTS |= {"spectrum_top_fraction", "dense_mixer", "kd_trainer"}
_OPTIMIZERS = frozenset(["use_galore", "use_badam", "use_apollo", "use_adam_mini", "use_muon", "optim_target_modules"])
_OPTIMIZERS |= {"noisy_embedding_alpha"}
_LOSSES = frozenset(["use_dft", "use_eaft", "use_dft_loss", "use_asft_loss", "use_eaft_loss", "enable_dft_loss"])
"""Switches for a loss that weighs the tokens by their own probability or entropy (axolotl, LLaMA-Factory, ms-swift)."""
REJECTED = _METHODS | _WEIGHTS | _OPTIMIZERS | _LOSSES
"""Keys that change which parameters are trained, the optimizer, the loss or the training method in a way that no trial
supports."""
_CUT_CROSS_ENTROPY = "cut_cross_entropy"
FUSED_LOSSES = frozenset([_CUT_CROSS_ENTROPY, "liger_fused_linear_cross_entropy"])
"""Keys of axolotl's plugins that compute output head and loss together, so that all logits are never in memory."""
_ENDS = (".", ":")
"""Characters after a plugin's module in its name: axolotl 0.21 takes `module.Class` and `module:Class`."""
_FUSED_PLUGIN = tuple(f"axolotl.integrations.cut_cross_entropy{end}" for end in _ENDS)

_PLUGINS_THAT_TRAIN_OTHERWISE: tuple[str, ...] = (
    "spectrum",
    "kd",
    "mora",
    "mixlora",
    "diffusion",
    "diffusion_decision",
    "densemixer",
)
_PLUGINS_THAT_TRAIN_OTHERWISE += ("nemo_gym", "hatchery", "llm_compressor", "grokfast")
_NEUTRAL: tuple[JsonValue, ...] = (None, False, "false", "False", 0, "none", "", [], {})


def is_set(value: JsonValue) -> bool:
    """Whether a value switches on the setting to which it belongs: anything but an empty, false or zero value."""
    return value not in _NEUTRAL


def is_silent(key: str, value: JsonValue) -> bool:
    """Whether a key of a fine-tuning tool's file needs no note: it changes no training step, is compared elsewhere, or
    is switched off."""
    return key in _SILENT or key.startswith(_PREFIXES) or (key in REJECTED | _SWITCHES and not is_set(value))


def switches_fused_loss_on(values: Mapping[str, JsonValue]) -> bool:
    """Whether an axolotl file has cut cross entropy only by its plugin's name: the plugin switches it on unless the file
    says false (0.21)."""
    plugins = values.get("plugins")
    names = plugins if isinstance(plugins, list) else [plugins]
    is_named = any(str(name).startswith(_FUSED_PLUGIN) for name in names)
    return is_named and _CUT_CROSS_ENTROPY not in values


def plugin_that_trains_otherwise(plugins: JsonValue) -> str | None:
    """Name of the first of axolotl's own plugins in the file that changes the trained weights or the loss; None where
    none does."""
    names = plugins if isinstance(plugins, list) else [plugins]
    packages = tuple(f"axolotl.integrations.{name}{end}" for name in _PLUGINS_THAT_TRAIN_OTHERWISE for end in _ENDS)
    return next((str(name) for name in names if str(name).startswith(packages)), None)

"""Hugging Face Trainer that trains a LoRA adapter (peft) on a frozen model, as a trial and with the best configuration."""

import os
import tempfile

import tiny_language
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from shardtune import adapter
from shardtune.adapter.trainer import attach, backends, training_arguments
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

trial = adapter.configuration(  # >>> the trial's configuration, the best known one, or this default
    backends=backends(),  # >>> backends to try
    default=TrialConfig(strategy=DdpConfig()),
    workload=Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"]),
)
lora = LoraConfig(r=int(trial.options.get("rank", 8)), target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
model = get_peft_model(tiny_language.build_model(trial.workload.seed), lora)
arguments = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    report_to="none",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    max_steps=int(os.environ.get("STEPS", "1_000_000")),
    **training_arguments(trial),  # >>> its parameters
)
trainer = Trainer(model, arguments, train_dataset=tiny_language.Text())
attach(trainer, trial)  # >>> reports every step
trainer.train()

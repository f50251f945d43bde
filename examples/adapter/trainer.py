"""Hugging Face Trainer, both as a trial and as a training with the best configuration. Lines for Shardtune are marked
with >>>."""

import os
import tempfile

import tiny_language
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
arguments = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    report_to="none",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    max_steps=int(os.environ.get("STEPS", "1_000_000")),
    **training_arguments(trial),  # >>> its parameters; rejects those that Trainer cannot apply
)
trainer = Trainer(tiny_language.build_model(trial.workload.seed), arguments, train_dataset=tiny_language.Text())
attach(trainer, trial)  # >>> reports every step, and ends the training when the trial has seen enough
trainer.train()

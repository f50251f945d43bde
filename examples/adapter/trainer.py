"""A Hugging Face Trainer as a trial. What Shardtune needs of it is marked with >>>."""

import tempfile

import tiny_language
from transformers import Trainer, TrainingArguments

from shardtune import adapter
from shardtune.adapter.trainer import attach, training_arguments

trial = adapter.trial()  # >>> the configuration to run
arguments = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    report_to="none",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    max_steps=1_000_000,
    **training_arguments(trial),  # >>> its knobs; refuses what Trainer cannot do here
)
trainer = Trainer(tiny_language.build_model(trial.workload.seed), arguments, train_dataset=tiny_language.Text())
attach(trainer, trial)  # >>> reports every step, and ends the training when the trial has seen enough
trainer.train()

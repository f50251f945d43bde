"""A Hugging Face Trainer that trains a LoRA adapter (peft) on a frozen model, as a trial."""

import tempfile

import tiny_language
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from shardtune import adapter
from shardtune.adapter.trainer import attach, training_arguments

trial = adapter.trial()  # >>> the configuration to run
lora = LoraConfig(r=int(trial.options.get("rank", 8)), target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
model = get_peft_model(tiny_language.build_model(trial.workload.seed), lora)
arguments = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    report_to="none",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    max_steps=1_000_000,
    **training_arguments(trial),  # >>> its knobs
)
trainer = Trainer(model, arguments, train_dataset=tiny_language.Text())
attach(trainer, trial)  # >>> reports every step
trainer.train()

"""Files of fine-tuning tools (axolotl, LLaMA-Factory, ms-swift) as baselines.

Each tool's words become fields of transformers' TrainingArguments, which one reader interprets; messages keep the user's
own keys.
"""

from shardtune.tuner.baseline.tools.precision import implied
from shardtune.tuner.baseline.tools.read import fields_of, read, recognised

__all__ = ["fields_of", "implied", "read", "recognised"]

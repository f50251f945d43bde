"""`python -m shardtune.workers.rank.count_model [TOKENS] < MODEL`: parameters and FLOPs of a model, as a JSON `ModelSummary`.

For predictions of architectures that have no closed form; the model is built without memory for its weights. TOKENS is the
length of a sample; without it the model's own length, up to 4096.
"""

import sys

from pydantic import ValidationError

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import build
from shardtune.workers.rank.training import model_summary

_LONGEST = 4096


def count(spec: ModelSpec, tokens: int | None = None) -> ModelSummary:
    """Build the model without memory for its weights, count its parameters and FLOPs, and return the summary.

    Raises:
        ValueError: transformers has no causal language model of that type, or a configuration that does not build one.
    """
    length = tokens or min(_LONGEST, _positions(spec) or _LONGEST)
    return model_summary.of(spec, Workload(sequence_length=length, global_batch=1))


def _positions(spec: ModelSpec) -> int | None:
    positions = getattr(build.config_of(spec).get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def main() -> int:
    """Print the model's summary as JSON; the exit code is 2, with the reason printed, where the model cannot be
    built."""
    try:
        summary = count(ModelSpec.model_validate_json(sys.stdin.read()), *map(int, sys.argv[1:]))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        print(f"model: {problems}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError) as error:
        print(f"model cannot be built: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    # Libraries print while they build; the answer is the last line.
    print("\n" + summary.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m shardtune.workers.rank.count_model [TOKENS | WORKLOAD] < MODEL`: parameters and FLOPs of a model, as a JSON
`ModelSummary`.

For predictions of architectures that have no closed form; the model is built without memory for its weights. TOKENS is the
length of a sample; without it the model's own length, up to 4096. The user's own code takes a WORKLOAD as JSON, of which
one step is traced.
"""

import sys

from pydantic import ValidationError

from shardtune.api_schemas.printable_text import printable
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import build
from shardtune.workers.rank.own_code import summary as own_code
from shardtune.workers.rank.own_code import trace_process
from shardtune.workers.rank.training import model_summary
from shardtune.workers.rank.training.step import UserStepError

_LONGEST = 4096
_MOST_SHOWN = 500


def count(spec: ModelSpec, tokens: int | None = None) -> ModelSummary:
    """Build the model without memory for its weights, count its parameters and FLOPs, and return the summary.

    Raises:
        ValueError: transformers has no causal language model of that type, or cannot build a model from the
            configuration.
    """
    length = tokens or min(_LONGEST, _positions(spec) or _LONGEST)
    return model_summary.of(spec, Workload(sequence_length=length, global_batch=1))


def count_own(spec: ModelSpec, workload: Workload) -> ModelSummary:
    """Build the model of the user's own code, trace one step, and return the summary.

    Raises:
        UserStepError: the code is missing, or fails while it builds the model.
    """
    return own_code.with_trace(model_summary.of(spec, workload), spec, workload)


def _summary(spec: ModelSpec, arguments: list[str]) -> ModelSummary:
    if spec.entry_point is not None and arguments:
        trace_process.limit_memory()
        return count_own(spec, Workload.model_validate_json(arguments[0]))
    return count(spec, *map(int, arguments))


def _positions(spec: ModelSpec) -> int | None:
    positions = getattr(build.config_of(spec).get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def main() -> int:
    """Print the model's summary as JSON. If the model cannot be built, print the reason instead; the exit code is then
    2."""
    try:
        summary = _summary(ModelSpec.model_validate_json(sys.stdin.read()), sys.argv[1:])
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        print(f"model: {problems}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError, UserStepError) as error:
        # On one line, which is all that the command line shows.
        message = printable(" ".join(str(error).split()))
        print(f"model cannot be built: {type(error).__name__}: {message:.{_MOST_SHOWN}}", file=sys.stderr)
        return 2
    except MemoryError:
        print("model cannot be built: it needs more than half of the free memory, or 8 GiB", file=sys.stderr)
        return 2
    except SystemExit as error:
        print(f"model cannot be built: the code ended the process by sys.exit ({error.code!r:.50})", file=sys.stderr)
        return 2
    # Libraries print while they build; the answer is the last line.
    print("\n" + summary.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Does a study find a setting of the environment that is known to matter, and do its files carry it?

Run: python -m benchmarks.planted_environment --json [--runs 10] [--trials 6] [--pairs 24]

Each run is `shardtune tune` on 2 CPU ranks with a seed of its own, over FSDP2's meshes and resharding, micro batches 1 and
2, and glibc's malloc thresholds; the baseline, as anybody starts, leaves these to glibc. The model has wide layers and few
tokens: each step gathers 12 MB of weights for each of its blocks, and glibc fetches them from the system again each time,
about a quarter of the step (docs/measurements/environment.md). Found: the answer is confirmed, and keeps freed memory. Prints how many runs
found, recorded and exported it, and each run's speed-up.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardtune.api_schemas.strategies.rank_environment import KEPT_MEMORY

_LIMIT_S = 1800.0
_MODEL = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}
_BASELINE = {
    "strategy": {"kind": "fsdp2", "dp_shard": 2, "dp_replicate": 1, "reshard_after_forward": False},
    "micro_batch": 2,
}


def study(seed: int, trials: int, pairs: int) -> dict[str, Any]:
    """The study file of one run."""
    return {
        "model": {"name": "wide", "config": _MODEL},
        "workload": {"sequence_length": 16, "global_batch": 4, "precision": "fp32"},
        "baseline": _BASELINE,
        "budget": {"max_trials": trials, "max_pairs": pairs, "resume_check": False},
        "space": {
            "backends": ["fsdp2"],
            "knobs": {"micro_batch": [1, 2], "activation_checkpointing": "none", "blocks_per_unit": 1},
        },
        "seed": seed,
    }


def run_study(seed: int, trials: int, pairs: int) -> dict[str, Any]:
    """Tune once; what came of it."""
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        (folder / "study.json").write_text(json.dumps(study(seed, trials, pairs)))
        command = [sys.executable, "-m", "shardtune", "tune", str(folder / "study.json"), "--json"]
        command += ["--state-dir", str(folder / "state"), "--out", str(folder / "best")]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False
        )
        if done.returncode:
            raise SystemExit(f"run {seed} failed:\n{done.stderr[-4000:]}")
        answer = json.loads(done.stdout)
        config = json.loads((folder / "best" / "config.json").read_text())["config"]
        script = (folder / "best" / "launch.sh").read_text()
    results = answer["verdict"] == "confirmed" and config["malloc"] == "keep"
    return {
        "seed": seed,
        "found": results,
        "recorded": config["malloc"] == "keep",
        "exported": all(f"export {variable}={value}" in script for variable, value in KEPT_MEMORY.items()),
        "verdict": answer["verdict"],
        "speedup": answer["speedup"],
        "malloc": config["malloc"],
    }


def main() -> None:
    """Run the studies one after the other, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--runs", type=int, default=10, help="studies (10)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first run, to go on in pieces (0)")
    parser.add_argument("--trials", type=int, default=6, help="trials of each search (6)")
    parser.add_argument("--pairs", type=int, default=24, help="most pairs of each verdict (24)")
    options = parser.parse_args()
    runs = []
    for seed in range(options.first_seed, options.first_seed + options.runs):
        runs.append(run_study(seed, options.trials, options.pairs))
        sys.stderr.write(f"{runs[-1]}\n")
    counts = {name: sum(bool(run[name]) for run in runs) for name in ("found", "recorded", "exported")}
    if options.json:
        print(json.dumps({**counts, "runs": runs}))
        return
    print(", ".join(f"{name} in {count} of {len(runs)}" for name, count in counts.items()))


if __name__ == "__main__":
    main()

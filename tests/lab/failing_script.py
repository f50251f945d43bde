"""A training script that fails as told: `failing_script.py oom|crash|hang`, on the last rank; the others wait for it."""

import os
import sys
import time

import torch


def main() -> None:
    """Fail, or wait for who does."""
    act, is_last = sys.argv[1], os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
    if is_last and act == "oom":
        raise torch.OutOfMemoryError("planted")
    if is_last and act == "crash":
        raise RuntimeError("planted")
    time.sleep(600)


if __name__ == "__main__":
    main()

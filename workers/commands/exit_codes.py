"""Exit codes of the worker's commands."""

DONE, COULD_NOT_WORK, BAD_INPUT, TRIAL_FAILED, INTERRUPTED = 0, 1, 2, 3, 130

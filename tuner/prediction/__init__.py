"""Memory and speed before a trial runs. Leaves measuring to the workers and what to try to `tuner.search`."""

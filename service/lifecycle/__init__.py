"""States of studies, trials and runs: transitions, ends, expiry, applying a plan. Leaves making the plan to `planning`."""

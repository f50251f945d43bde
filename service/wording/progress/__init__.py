"""Words about a study that runs: its present activity, and the time that is left."""

"""Who proposes what comes next: the guided sampler's rivals, drawn through Optuna. The only room that imports it."""

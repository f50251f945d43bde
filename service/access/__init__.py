"""Who may do what and how much: keys, projects, quotas, the retuning budget. Leaves HTTP's answers to `http`."""

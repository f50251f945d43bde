"""Page of plans: its form, the table of kinds and numbers of GPUs, and the charts. The plan itself is computed elsewhere."""

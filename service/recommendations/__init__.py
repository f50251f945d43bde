"""Record, decide and renew the answer of a case. Leaves finding it to `best`."""

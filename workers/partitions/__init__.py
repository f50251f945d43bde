"""Several workers on one machine: what each has of it, and how they keep out of each other's way there. Whose turn it is, the service says."""

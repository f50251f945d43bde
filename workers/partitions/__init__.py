"""Several workers on one machine: the host partition of each, and locks between them. The service schedules their runs."""

"""Several workers on one machine: the host partition (part of the devices) of each worker, and locks between the
workers. The service schedules their runs."""

"""Random faults of a service, its workers, database and disk for a while: `python -m benchmarks.service.soak`."""

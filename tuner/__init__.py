"""Pure functions that propose configurations, rank trials and predict cost. They leave storage to `db`, execution to
`workers` and timing to `service`."""

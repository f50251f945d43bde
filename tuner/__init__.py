"""Pure functions that propose configurations, rank trials and predict cost. Storage is in `db`, execution in `workers`
and timing in `service`."""

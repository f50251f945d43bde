"""The service under load and under fire: real processes, a real Postgres, workers that speak the real protocol."""

"""Real and simulated parts around the service: clients, workers, replicas, databases, webhook receivers."""

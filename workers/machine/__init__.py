"""Machine under the ranks: inventory, speed, devices, conditions. Starts no training."""

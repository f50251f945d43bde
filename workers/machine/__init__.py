"""What this host is and how it fares: inventory, speed, devices, conditions. Starts no training."""

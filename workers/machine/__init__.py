"""Machine on which ranks run: inventory, speed, devices, and conditions during runs. Starts no training."""

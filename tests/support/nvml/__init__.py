"""A stand-in for NVIDIA's driver library."""

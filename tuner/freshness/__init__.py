"""Which differences make a measurement old, and when. Leaves writing it down to the service."""

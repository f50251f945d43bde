"""Programs that the rank tests run in forks, and stand-ins for a GPU and for other ranks."""

"""Fork server: imports torch once and forks ranks. Their work is in `workers.rank.main`."""

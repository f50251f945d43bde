"""The fork server, which imports once and forks ranks. Leaves what a rank does to `workers.rank.main`."""

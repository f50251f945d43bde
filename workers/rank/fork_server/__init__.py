"""Fork server: a process that imports torch once and forks the ranks of each trial. The ranks' own work is in
`workers.rank.main`."""

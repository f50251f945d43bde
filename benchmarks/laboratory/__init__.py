"""Laboratory in slow motion: training programs that wait instead of computing, over real links, projected to more hosts.

`programs` says what runs, `paced`, `streams`, `training`, `zero` and `rank` run it on a host, `hosts` drives the hosts,
`foretell` projects with the product's own code, and `scores` judges.
"""

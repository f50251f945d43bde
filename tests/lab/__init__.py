"""The laboratory: made-up hosts on this machine, joined by links that can be shaped and cut; for root on Linux.

`python -m tests.lab up|exec|cut|restore|kill|stop|down`. A host is a set of namespaces (network, processes, mounts, host
name) with its own /tmp and /dev/shm; everything else of the file system is one for all. Killing its process 1 is a power
cut. Slurm or Ray run on the hosts, as on real ones.
"""

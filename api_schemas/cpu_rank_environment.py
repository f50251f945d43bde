"""What CPU ranks must find in their environment to run as measured: set for trials and in exported launchers alike."""

CPU_RANKS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Keep freed memory (glibc's mallopt(3), bytes). By itself glibc learns from what a process has freed so far what it
returns to the system at once, and fetches again page by page in the next step: FSDP2's step of 0.16 s took 0.18 s."""

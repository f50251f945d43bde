"""Analyse the profiler traces of all ranks (Kineto format, as torch.profiler writes them) and compute the time of each
part of a step, for CUDA streams and gloo threads alike. Used by the worker for its own runs and by the command line for
a folder; `tuner.diagnosis` derives findings from the result."""

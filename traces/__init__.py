"""Analysis of the traces of all ranks (Kineto, as torch's profiler writes them): the time of each part of a step.

One table of intervals serves CUDA streams and the threads of gloo. The worker reads the traces of a leased run with it, the
command line those of a folder. tuner.diagnosis draws findings from the result.
"""

"""Analysis of the traces of all ranks (Kineto, as torch's profiler writes them): the time of each part of a step.

One table of intervals for CUDA streams and for the threads of gloo. Whoever has the traces reads them with it: the worker
those of a leased run, the command line those of a folder. What they point to is tuner.diagnosis.
"""

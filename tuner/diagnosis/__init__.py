"""Where a step went: from traces of all ranks (Kineto, as torch's profiler writes them) to its parts, and what they point to.

Pure: whoever has the files opens them. One table of intervals for CUDA streams and for the threads of gloo.
"""

"""Exports for programs that start a training on machines: SkyPilot, dstack, Kubeflow Trainer and Ray.

The files say nodes, GPUs, rendezvous and environment; `launch.sh`, which is part of each of these exports, says the rest.
"""

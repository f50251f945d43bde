"""Spaces of the backends, a module each: the backend's knobs, their conditions and values. The walk is in
`define_by_run`."""

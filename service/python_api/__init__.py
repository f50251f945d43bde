"""Python API of the package (`import shardtune as st`): predictions, plans and studies as values with figures, records for
pandas and HTML for notebooks. It computes nothing of its own: it calls what the command line and the tools call.
"""

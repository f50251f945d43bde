"""Recorded messages and schemas of each version of the worker protocol, and the tests that hold readers and writers to
them."""

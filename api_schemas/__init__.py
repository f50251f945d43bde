"""Pydantic schemas shared by all components of Shardtune: immutable values with validation and formatting only. The
package imports only pydantic and the standard library, so that every component, and a GPU host without the service, can
load it."""

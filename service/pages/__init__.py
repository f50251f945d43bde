"""The dashboard: server-rendered pages over the service's own rules and queries, with small scripts on top.

Every table and form works without a script; `install` is all the application needs to know.
"""

from shardtune.service.pages.app import install

__all__ = ["install"]

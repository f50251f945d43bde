"""The dashboard: server-rendered pages over the service's own rules and queries, with small scripts on top.

Every table and form works without a script; `install` and `ENTRIES` are all the application needs to know.
"""

from shardtune.service.pages.app import ENTRIES, install

__all__ = ["ENTRIES", "install"]

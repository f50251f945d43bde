"""Dashboard: pages that the server renders with the service's own rules and queries, and a few small scripts.

Every table and form works without a script. The application needs only `install` and `ENTRIES`.
"""

from shardtune.service.pages.app import ENTRIES, install

__all__ = ["ENTRIES", "install"]

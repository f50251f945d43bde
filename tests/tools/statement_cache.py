"""Statements are compiled once per process of the tests, not once for each test's database.

SQLAlchemy keeps what it compiles with an engine, for its dialect. A service has one engine for its life; tests have a
database each, by hundreds.
"""

from collections.abc import Hashable
from typing import Any

from sqlalchemy import Engine, event

from shardtune.db import session

_make_engine = session.make_engine
_CONNECTED: dict[Hashable, Engine] = {}


def install() -> None:
    """Make engines of this process share compiled statements with the first connected one of their kind."""
    session.make_engine = _sharing


def _sharing(url: str, *arguments: Any, **options: Any) -> Engine:
    engine = _make_engine(url, *arguments, **options)
    kind = (engine.url.drivername, options.get("json_deserializer"))
    if (shared_cache := _CONNECTED.get(kind)) is None:
        # Its dialect knows its server once it has connected.
        event.listen(engine, "first_connect", lambda *_: _CONNECTED.setdefault(kind, engine))
    else:
        engine.dialect, engine._compiled_cache = shared_cache.dialect, shared_cache._compiled_cache
    return engine

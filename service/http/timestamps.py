"""Timestamps in requests, accepted only in RFC 3339 format as documented for the API."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)


def _check_rfc_3339(value: object) -> object:
    """Reject a timestamp that is not in RFC 3339 format."""
    # Pydantic would also take a number, as seconds since 1970.
    if not isinstance(value, str) or not _RFC_3339.fullmatch(value):
        raise ValueError("must be a date and time with its zone, such as 2026-01-31T12:00:00Z; correct it")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is before the year 1 or after 9999 in UTC; correct it") from None


Timestamp = Annotated[AwareDatetime, BeforeValidator(_check_rfc_3339), AfterValidator(_in_utc)]
"""Field type for an RFC 3339 timestamp with a time zone; converted to UTC."""

"""Table of the schema's compatibility: which versions of the code can use the database as it is."""

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.db.tables.base import Row


class SchemaCompatibilityRow(Row):
    """Table row with facts about the database's schema, written by each migration; the table has only this row.

    A release that does not know the database's revision reads it, to learn whether it can go on during and after the
    upgrade of other replicas.
    """

    __tablename__ = "schema_compatibility"

    revision: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Schema revision of the database."""
    oldest_code: Mapped[str] = mapped_column(String(64))
    """Oldest schema revision whose code can still read and write the database's present schema."""

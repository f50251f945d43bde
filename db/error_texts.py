"""Keep the values of statements out of database errors, which end in logs and in tracebacks."""

from sqlalchemy import Engine, ExceptionContext, event


def hide_values(engine: Engine) -> None:
    """Replace the text of each database error by the error's kind, its SQLSTATE, and the constraint, column and table
    that it names, so that no stored value reaches a log.

    SQLAlchemy's `hide_parameters` covers the statement's parameters only. Postgres repeats values in its own text:
    `Key (name)=(…) already exists`, `invalid input syntax for type integer: "…"`, or the whole failing row.
    """
    if engine.dialect.name == "postgresql":
        event.listen(engine, "handle_error", _replace_text)


def _replace_text(context: ExceptionContext) -> None:
    details = getattr(context.original_exception, "diag", None)
    # Without a SQLSTATE the text is the client library's: the connection failed, and the text says how.
    if details is None or details.sqlstate is None:
        return
    places = {
        "constraint": details.constraint_name,
        "column": details.column_name,
        "table": details.table_name,
    }
    named = "".join(f", {place} {name}" for place, name in places.items() if name)
    kind = type(context.original_exception).__name__
    text = f"{kind} (SQLSTATE {details.sqlstate}{named}); the server's log has the values"
    context.original_exception.args = (text,)
    if context.sqlalchemy_exception is not None:
        driver = type(context.original_exception)
        context.sqlalchemy_exception.args = (f"({driver.__module__}.{driver.__qualname__}) {text}",)

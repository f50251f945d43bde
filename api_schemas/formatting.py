"""Sizes of memory as people read them."""

_SMALL_GIB = 0.1


def memory(gib: float) -> str:
    """GiB with its unit and as many digits as matter: `4.05 MiB`, `29.7 MiB`, `0.35 GiB`, `79.2 GiB`."""
    size, unit = (gib * 1024, "MiB") if abs(gib) < _SMALL_GIB else (gib, "GiB")
    digits = 2 if abs(size) < 10 else 1 if abs(size) < 1000 else 0
    return f"{size:,.{digits}f} {unit}"

"""Lists of a plan as people write them: numbers of GPUs and prices, for the command line and the page of plans."""

import re

_MOST_DOUBLINGS = 32


def read_counts(text: str) -> tuple[int, ...]:
    """Numbers of GPUs: `8..1024` stands for 8, 16, 32, … 1024, and `8,16,24` for the numbers listed.

    Raises:
        ValueError: the text has neither form, or a range ends before it begins.
    """
    counts = list[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\.\.(\d{1,9}))?\s*", part, re.ASCII)
        if match is None:
            raise ValueError(
                f"counts ({part[:40]!r}) must be a number, or a range such as 8..1024; list several with commas"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1 or last < first:
            raise ValueError(f"counts ({part}) must begin at 1 or more and not end before it begins; try 8..1024")
        counts += [first << power for power in range(_MOST_DOUBLINGS) if first << power <= last]
    return tuple(dict.fromkeys(counts))


def read_prices(text: str) -> dict[str, float]:
    """Prices of a GPU-hour by kind: `h100=2.10,h200=2.60`; empty for empty text.

    Raises:
        ValueError: the text has another form.
    """
    prices = dict[str, float]()
    for part in text.split(",") if text.strip() else ():
        name, _, value = part.partition("=")
        try:
            price = float(value)
        except ValueError:
            raise ValueError(f"price ({part[:40]!r}) must read like h100=2.10: kind, and price of a GPU-hour") from None
        if name.strip() in prices:
            raise ValueError(f"price ({part[:40]!r}) is a second price of {name.strip()[:40]}; give each kind one")
        prices[name.strip()] = price
    return prices

"""One process of foreign load: burn a fraction of a core, evenly or in bursts. Run as a file: it imports nothing.

`python burner.py FRACTION PERIOD_S`. All burners of one period are busy at the same time, as a build or a browser is.
"""

import sys
import time


def burn(fraction: float, period_s: float) -> None:
    """Burn `fraction` of each period of wall-clock time, for ever."""
    while True:
        phase = time.time() % period_s
        if phase >= fraction * period_s:
            time.sleep(period_s - phase)
            continue
        # About a millisecond of arithmetic between two looks at the clock.
        for number in range(20_000):
            number * number


if __name__ == "__main__":
    burn(float(sys.argv[1]), float(sys.argv[2]))

"""`python -m docs.generate [FOLDER]`: build the documentation site into build/site, or into another folder."""

import sys
import time
from pathlib import Path

from docs.generate.assemble import assemble
from docs.generate.markers import MarkerError
from docs.generate.site import SiteError, generate
from docs.generate.sources import ROOT


def main() -> int:
    """Build it; returns the exit code."""
    began = time.monotonic()
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site").resolve()
    folder = ROOT / "build/docs"
    try:
        assemble(folder)
        generate(folder, site)
    except (MarkerError, SiteError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(list(site.rglob('*.html')))} pages in {site}, built in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

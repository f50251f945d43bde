"""Pages of the documentation site, and in `docs.generate` the programs that build and check it."""

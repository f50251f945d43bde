"""Answer of a study as one file to share: a Markdown page or an SVG picture."""

"""Charts as geometry: pure functions from figures to shapes in SVG user units, drawn by `templates/charts.html`.

Own SVG rather than a library: the content security policy forbids inline styles, which the charting packages write.
"""

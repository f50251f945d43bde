"""Geometry of charts: pure functions from figures to shapes in SVG user units; `templates/charts.html` draws them.

Own SVG rather than a library: the content security policy forbids inline styles, which the charting packages write.
"""

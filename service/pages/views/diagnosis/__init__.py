"""Values of a trial's diagnosis page."""

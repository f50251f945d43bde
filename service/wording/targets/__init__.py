"""Words about a study's target and its projection, for the command line and the pages."""

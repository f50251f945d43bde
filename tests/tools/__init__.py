"""Programs and pytest plugins of the test run itself: order of modules, measured durations, audit of packages."""

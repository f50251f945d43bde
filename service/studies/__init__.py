"""What can be done with a study: create, read, act, extend, follow. Leaves its runs to `leasing`."""

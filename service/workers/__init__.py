"""Workers: register, list, and which of them fits which study. Leaves their runs to `leasing`."""

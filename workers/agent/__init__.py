"""One lease after the other: ask, run, supervise, collect, report. Leaves starting ranks to `workers.launchers`."""

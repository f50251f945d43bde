"""Measurements: speed, accuracy, load and failures. Each command is run by hand; results are kept in docs/measurements.

Every module and every folder here is one command: `python -m benchmarks.NAME`. A folder holds its command in `__main__`
and the parts of it beside that.

- Accuracy of the predictor: predictor, own_trials, parallel, tracker, rehearsal, host_costs; of projections and plans: scaling,
  whole_runs.
- Search and final comparison: search, verdicts, baseline, challenges, repeats, planted_environment,
  busy.
- Diagnosis: diagnosis.
- Service and pages: service, pages.
- Trials and hosts: warm_cold, dispatch, hosts, host_faults, long_run, gpu_report.
"""

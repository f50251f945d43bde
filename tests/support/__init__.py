"""What tests and benchmarks share: fakes, helpers, real parts. No tests here."""

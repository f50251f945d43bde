"""Values of the product's schemas for tests of pure functions: profiles, measurements, studies, traces."""

"""Search spaces of the backends, one module each: the backend's knobs, their conditions and values. `define_by_run`
draws configurations from them."""

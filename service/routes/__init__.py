"""HTTP routes of the API: one module per noun; each endpoint calls one function of the service."""

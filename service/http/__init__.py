"""HTTP machinery shared by all routes: errors, paging, ETags, idempotent requests, and checks of input."""

"""HTTP routes: one module per noun; each endpoint calls one rule."""

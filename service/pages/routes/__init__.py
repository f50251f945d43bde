"""Addresses of the pages: one module per page; each reads through views and renders one template."""

"""Plain values for the templates, made from database rows; every decision is taken here, none in a template."""

"""Parts of each exported file that depend on the training backend, one module for each backend; the parent package
writes the files."""

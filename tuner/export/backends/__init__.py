"""Parts of each exported file by backend, a module each; the parent package writes the files."""

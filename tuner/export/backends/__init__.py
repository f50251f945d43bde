"""What each backend has to say in each exported file, a module each; the files themselves are its parent's."""

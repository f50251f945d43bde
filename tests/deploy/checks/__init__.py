"""Checks of deploy/ for `make check-deploy`: each check takes the folder and returns what is wrong, in words."""

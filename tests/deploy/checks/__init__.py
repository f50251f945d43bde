"""What `make check-deploy` looks at in deploy/: each check takes the folder and returns what is wrong, in words."""

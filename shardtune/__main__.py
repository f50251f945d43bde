"""`python -m shardtune`: the same as `shardtune`."""

from shardtune.service.cli import main

if __name__ == "__main__":
    main()

"""Run the command line: `python -m shardtune` is the same as `shardtune`."""

from shardtune.service.cli import main

if __name__ == "__main__":
    main()

"""Commands of `shardtune`, one module each; `service.cli` holds the code that they share."""

"""Training backends of a rank, one file each; `base` holds the trainer contract and the code that backends share."""

"""Training backends of a rank, one file each; `base` has the trainer interface and the code that backends share."""

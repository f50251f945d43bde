"""Plans of whole training runs: the best configuration of each kind and number of GPUs, its hours, money and date. Pure;
imports no torch and reads no clock."""

"""Trials and answers of studies in the stores of other programs: Optuna, MLflow, Weights & Biases."""

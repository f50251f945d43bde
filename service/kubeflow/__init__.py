"""Recommender for Kubeflow Trainer: a mutating admission webhook that completes TrainJobs which ask for it."""

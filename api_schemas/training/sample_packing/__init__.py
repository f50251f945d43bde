"""Packed samples: how rows are filled, and the models that tell the samples of a row apart."""

"""Insights into a finished study: Pareto fronts and the importance of knobs. Insights decide nothing."""

"""Queries on recommendations: proposals that wait for approval, their history, and those of studies."""

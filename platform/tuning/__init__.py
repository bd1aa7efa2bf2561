"""Tuning: search spaces, studies in Optuna's storage, samplers and their abilities, fronts. Knows no torch."""

"""Tuning a point's settings: a study proposes, trials train through the grid's driver, the results are told."""

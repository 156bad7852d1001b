"""The CI gate: a run against its budgets and its baseline."""

"""Algorithmic: attention by parts as one kernel."""

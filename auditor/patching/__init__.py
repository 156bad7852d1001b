"""Replacements applied to a live model: chosen by the rules, verified, measured, and undone exactly."""

"""From a stored audit to a plan: the script runs again, and its model is patched, verified and measured in place."""

"""Jobs: queued, run one at a time, cancelled and retried."""

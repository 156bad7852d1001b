"""Audits from within a training: callbacks for the trainers of others, and a handler for a profiler of one's own.

Nothing in here is imported by ``import auditor``, and each module needs the library that it is named after.
"""

"""Audits in tests: the plugin of pytest, its fixture ``fusion_audit`` and its marker ``fusion_budget``.

Nothing here is imported but by pytest, which is no dependency of the package; and the plugin imports no torch before a
test audits a model.
"""

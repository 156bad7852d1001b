"""Horizontal: sibling GEMMs of one input as one."""

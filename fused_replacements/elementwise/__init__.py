"""Elementwise: activations, gates, rotary embedding, dropout, and chains of any operations."""

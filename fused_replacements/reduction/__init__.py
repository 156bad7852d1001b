"""Reduction + elementwise: norms, softmax and losses, one pass over each row."""

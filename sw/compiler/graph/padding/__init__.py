"""Proves which networks compute the same results from inputs padded along open dimensions."""

"""Measurements as text tables, charts and HTML."""

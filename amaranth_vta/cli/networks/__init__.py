"""Commands about networks."""

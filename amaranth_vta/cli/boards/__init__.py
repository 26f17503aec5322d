"""Commands for boards and for deployment."""

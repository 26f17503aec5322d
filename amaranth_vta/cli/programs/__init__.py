"""Commands about programs of the machine."""

"""Commands about the machine: its design, bitstreams and boards."""

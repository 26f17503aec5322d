"""What `vta bench` measures: rates, latencies, layers and whole networks."""

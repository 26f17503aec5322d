"""Design space exploration: which machine for which network (``vta explore``)."""

"""Netlist transformations after synthesis, before placement or clock estimation."""

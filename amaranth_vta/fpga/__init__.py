"""Bitstreams for boards, and estimates of FPGA resources."""

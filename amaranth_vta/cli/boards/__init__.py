"""Commands for FPGA boards and deployment."""

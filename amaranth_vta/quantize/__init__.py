"""Quantizes float models with ONNX Runtime's quantizer, and measures the accuracy of the result."""

"""Quantization of float models by ONNX Runtime's quantizer, and the accuracy of the result."""

"""From a float model to one in integers, by ONNX Runtime's quantizer, and how well that went."""

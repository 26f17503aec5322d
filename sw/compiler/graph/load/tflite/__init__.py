"""Read TensorFlow Lite files: `model_of` returns the ONNX model with the same integer results."""

from .model import TFLITE_SOURCE, is_tflite, model_of, tflite_source, written_anew
from .reference_kernels import ReferenceModel

__all__ = [
    "TFLITE_SOURCE",
    "ReferenceModel",
    "is_tflite",
    "model_of",
    "tflite_source",
    "written_anew",
]

"""The available networks, and how each is quantized: `NETWORKS`, `MLPERF_TINY`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Form:
    """How ONNX Runtime quantizes a network: types of activations and weights, format (QOperator
    with ``operators``, else QDQ), scales per channel or per tensor, weights with zero points unless
    ``symmetric``, scales restricted to powers of two, activations without zero points if
    ``symmetric_activations``. If operators are named in ``only``, others stay in float.
    """

    activations: str = "uint8"
    weights: str = "int8"
    operators: bool = False
    per_channel: bool = True
    symmetric: bool = True
    power_of_two: bool = False
    symmetric_activations: bool = False
    only: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, str, str]:
        """Format, types of activations and weights in ONNX Runtime's notation, and granularity of
        scales.
        """
        signs = {"uint8": "U8", "int8": "S8", "int4": "S4"}
        scales = "channel" if self.per_channel else "tensor"
        return (
            "QOperator" if self.operators else "QDQ",
            signs[self.activations] + signs[self.weights],
            f"{scales}, 2^n" if self.power_of_two else scales,
        )

    def __str__(self) -> str:
        return ", ".join(
            (
                "QOperator" if self.operators else "QDQ",
                f"{self.activations} × {self.weights}",
                "per channel" if self.per_channel else "per tensor",
                *(() if self.symmetric else ("weights with zero points",)),
                *(("powers of two",) if self.power_of_two else ()),
                *(("activations without zero points",) if self.symmetric_activations else ()),
                *((f"only {', '.join(self.only)}",) if self.only else ()),
            )
        )


@dataclass(frozen=True)
class Generator:
    """One network, built by the function of the same name in ``module`` of this package. ``size``
    is the size of its input: pixels per side, the length of a sequence or, for a network that
    ``decodes`` tokens with caches, the maximum number of tokens.
    """

    module: str
    what: str
    size: int
    form: Form
    opset: int = 17
    decodes: bool = False


_PRODUCTS = Form("int8", symmetric_activations=True, only=("MatMul",))
_PRODUCTS_INT4 = replace(_PRODUCTS, weights="int4")
_SHIFTS = Form("int8", per_channel=False, power_of_two=True)
NETWORKS: dict[str, Generator] = {
    "resnet18": Generator("residual", "ResNet-18", 224, Form()),
    "resnet50": Generator("residual", "ResNet-50", 224, Form("int8")),
    "mobilenetv2": Generator("mobile", "MobileNetV2", 224, Form()),
    "efficientnet-lite": Generator("mobile", "EfficientNet-Lite0", 224, Form("int8")),
    "shufflenet": Generator("mobile", "ShuffleNetV2", 224, Form(per_channel=False)),
    "squeezenet": Generator(
        "branching",
        "SqueezeNet 1.1",
        224,
        Form("uint8", "uint8", operators=True, per_channel=False, symmetric=False),
    ),
    "inception": Generator("branching", "Inception v1", 224, Form("int8", operators=True)),
    "unet": Generator("branching", "U-Net, ConvTranspose", 128, Form("int8")),
    "ocr": Generator("detection", "a line of text, CTC", 128, Form(per_channel=False)),
    "yolo": Generator("detection", "detector with SiLU", 320, Form()),
    "bert-tiny": Generator("attention", "BERT-tiny", 128, Form()),
    "vit-tiny": Generator("attention", "ViT-Ti of 4 layers", 224, Form("int8"), 20),
    "keywords": Generator(
        "small", "keywords by Conv1d", 100, Form("uint8", "uint8", symmetric=False)
    ),
    "llama-tiny": Generator("decoders", "Llama of 2 layers", 64, _PRODUCTS, decodes=True),
    "llama-15m": Generator("decoders", "Llama of 15 M parameters", 64, _PRODUCTS, decodes=True),
    "llama-15m-int4": Generator(
        "decoders", "the same, weights of 4 bits", 64, _PRODUCTS_INT4, decodes=True
    ),
    "mlp": Generator("small", "multilayer perceptron", 64, _SHIFTS),
    "digits": Generator("small", "digits, not trained", 8, _SHIFTS),
}


@dataclass(frozen=True)
class TinyModel:
    """A network with the shapes of a reference model of MLPerf Tiny, as a TensorFlow Lite file:
    ``what`` it is, the ``shape`` of its input, the name of the published ``file``, and whether
    weights have a scale per ``channel`` or ``tensor``.
    """

    what: str
    shape: str
    file: str
    scales: str = "channel"


MLPERF_TINY = {
    "mlperf-keywords": TinyModel("keyword spotting", "49×10×1", "kws_ref_model.tflite"),
    "mlperf-wake-words": TinyModel("visual wake words", "96×96×3", "vww_96_int8.tflite"),
    "mlperf-resnet": TinyModel("ResNet for CIFAR-10", "32×32×3", "pretrainedResnet_quant.tflite"),
    "mlperf-anomaly": TinyModel("anomaly detection", "640", "ad01_int8.tflite", "tensor"),
    "mlperf-streaming": TinyModel("streaming wake word", "30×1×40", "str_ww_ref_model.tflite"),
}

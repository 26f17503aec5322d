"""A small convolutional network in NumPy: forward, backward, and Adam to train it.

Activations are float32 (images, channels, height, width), convolution weights (output channels,
input channels, height, width), fully connected weights (outputs, inputs).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass
class Parameter:
    """Weights that Adam (Kingma and Ba, 2015) moves along ``gradient``."""

    value: Array
    gradient: Array = field(init=False)
    mean: Array = field(init=False)
    square: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient, self.mean, self.square = (np.zeros_like(self.value) for _ in range(3))

    def step(self, rate: float, number: int) -> None:
        self.mean += 0.1 * (self.gradient - self.mean)
        self.square += 0.001 * (self.gradient**2 - self.square)
        mean = self.mean / (1 - 0.9**number)
        square = self.square / (1 - 0.999**number)
        self.value -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


def _initial(rng: np.random.Generator, *shape: int) -> Parameter:
    """Normal, scaled for what a ReLU follows (He et al., 2015)."""
    spread = np.sqrt(2 / np.prod(shape[1:]))
    return Parameter((spread * rng.standard_normal(shape)).astype(np.float32))


class Conv:
    """3×3 convolution with one pixel of zero padding, and bias."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        self.weight = _initial(rng, outputs, inputs, 3, 3)
        self.bias = Parameter(np.zeros(outputs, np.float32))
        self._columns = np.zeros((0, 0), np.float32)

    def forward(self, x: Array) -> Array:
        n, c, h, w = x.shape
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3)
        )
        self._columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)
        y = self._columns @ self.weight.value.reshape(-1, c * 9).T + self.bias.value
        return y.reshape(n, h, w, -1).transpose(0, 3, 1, 2)

    def backward(self, gradient: Array) -> Array:
        n, outputs, h, w = gradient.shape
        flat = gradient.transpose(0, 2, 3, 1).reshape(n * h * w, outputs)
        self.weight.gradient = (flat.T @ self._columns).reshape(self.weight.value.shape)
        self.bias.gradient = flat.sum(axis=0)
        c = self.weight.value.shape[1]
        columns = (flat @ self.weight.value.reshape(outputs, -1)).reshape(n, h, w, c, 3, 3)
        padded = np.zeros((n, c, h + 2, w + 2), np.float32)
        for dy in range(3):
            for dx in range(3):
                tap = columns[..., dy, dx].transpose(0, 3, 1, 2)
                padded[:, :, dy : dy + h, dx : dx + w] += tap
        return padded[:, :, 1:-1, 1:-1]

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]


class Dense:
    """Fully connected, on flattened activations."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        self.weight = _initial(rng, outputs, inputs)
        self.bias = Parameter(np.zeros(outputs, np.float32))
        self._input = np.zeros((0, 0), np.float32)

    def forward(self, x: Array) -> Array:
        self._input = x
        return x.reshape(len(x), -1) @ self.weight.value.T + self.bias.value

    def backward(self, gradient: Array) -> Array:
        self.weight.gradient = gradient.T @ self._input.reshape(len(gradient), -1)
        self.bias.gradient = gradient.sum(axis=0)
        return (gradient @ self.weight.value).reshape(self._input.shape)

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]


class Relu:
    def __init__(self) -> None:
        self._positive = np.zeros(0, np.bool_)

    def forward(self, x: Array) -> Array:
        self._positive = x > 0
        return x * self._positive

    def backward(self, gradient: Array) -> Array:
        return gradient * self._positive

    def parameters(self) -> list[Parameter]:
        return []


class MaxPool:
    """2×2 maximum with stride 2."""

    def __init__(self) -> None:
        self._largest = np.zeros(0, np.bool_)

    def forward(self, x: Array) -> Array:
        n, c, h, w = x.shape
        tiles = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y = tiles.max(axis=(3, 5))
        self._largest = tiles == y[:, :, :, None, :, None]
        return y

    def backward(self, gradient: Array) -> Array:
        n, c, h, w = gradient.shape
        shared = self._largest / self._largest.sum(axis=(3, 5), keepdims=True)
        spread = shared * gradient[:, :, :, None, :, None]
        return spread.reshape(n, c, 2 * h, 2 * w).astype(np.float32)

    def parameters(self) -> list[Parameter]:
        return []


Layer = Conv | Dense | Relu | MaxPool


class Network:
    """Convolutions 1→16→32, pooling, convolution 32→32, fully connected to 10 classes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.layers: dict[str, Layer] = {
            "conv1": Conv(rng, 1, 16),
            "relu1": Relu(),
            "conv2": Conv(rng, 16, 32),
            "relu2": Relu(),
            "pool": MaxPool(),
            "conv3": Conv(rng, 32, 32),
            "relu3": Relu(),
            "dense": Dense(rng, 512, 10),
        }

    def forward(self, x: Array) -> dict[str, Array]:
        """What each layer puts out, by its name."""
        outputs = {}
        for name, layer in self.layers.items():
            x = outputs[name] = layer.forward(x)
        return outputs

    def train_step(self, x: Array, labels: npt.NDArray[np.int64], rate: float, step: int) -> float:
        """One step of Adam on a batch; the mean cross-entropy before it. ``step`` counts from 1."""
        logits = self.forward(x)["dense"]
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(len(x))
        loss = float(-np.log(probabilities[rows, labels] + 1e-12).mean())
        gradient = probabilities
        gradient[rows, labels] -= 1
        gradient /= len(x)
        for layer in reversed(self.layers.values()):
            gradient = layer.backward(gradient)
        for layer in self.layers.values():
            for parameter in layer.parameters():
                parameter.step(rate, step)
        return loss

"""Classify float operators as element-wise."""

from __future__ import annotations

from .nodes import MICROSOFT, Node

# Operators that compute each element from the operands' elements at the same position only.
_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "BatchNormalization", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf"),
        *("Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log"),
        *("Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish"),
        *("Tanh", "ThresholdedRelu"),
    }
)
# Element-wise operators of com.microsoft on floats.
_CONTRIBUTED = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu"})


def is_elementwise(node: Node) -> bool:
    """Whether each element of the result depends only on the operands' elements at its position."""
    known = _CONTRIBUTED if node.domain == MICROSOFT else _ELEMENTWISE
    if node.operator not in known or node.domain not in ("", MICROSOFT):
        return False
    # In training mode, BatchNormalization uses the mean of its input.
    return not node.attributes.get("training_mode")

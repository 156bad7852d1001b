"""The activations of ``fused_replacements/_activations.py`` as Triton device functions, and their derivatives.

All take and return fp32 in registers. ``activate`` and ``activate_with_slope`` pick one by its name, a constexpr; the
second shares what value and derivative have in common. A NaN comes out as NaN, as it does in PyTorch: a maximum
would hide it. Tensors stand left of constants: Triton's interpreter needs them so.
"""

from __future__ import annotations

import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)
TWICE_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
GELU_CUBIC = tl.constexpr(0.044715)
QUICK_GELU_SCALE = tl.constexpr(1.702)


@triton.jit
def identity(x):
    return x


@triton.jit
def relu(x):
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def relu_squared(x):
    positive = relu(x)
    return positive * positive


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    # Triton has no tanh of its own; the closed form cancels near zero, where the series takes over
    square = x * x
    series = 1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))))
    far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.abs(x)))
    return tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0.0, -far, far))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))


@triton.jit
def gelu_tanh(x):
    # 0.5 · (1 + tanh(u)) = sigmoid(2u)
    return x * sigmoid(x * TWICE_SQRT_2_OVER_PI * (1.0 + x * x * GELU_CUBIC))


@triton.jit
def quick_gelu(x):
    return x * sigmoid(x * QUICK_GELU_SCALE)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation called ``ACTIVATION`` of ``x``."""
    if ACTIVATION == "identity":
        y = x
    elif ACTIVATION == "relu":
        y = relu(x)
    elif ACTIVATION == "relu_squared":
        y = relu_squared(x)
    elif ACTIVATION == "sigmoid":
        y = sigmoid(x)
    elif ACTIVATION == "tanh":
        y = tanh(x)
    elif ACTIVATION == "silu":
        y = silu(x)
    elif ACTIVATION == "gelu":
        y = gelu(x)
    elif ACTIVATION == "gelu_tanh":
        y = gelu_tanh(x)
    else:
        tl.static_assert(ACTIVATION == "quick_gelu", "no such activation")
        y = quick_gelu(x)
    return y


@triton.jit
def _gelu_with_slope(x):
    cdf = 0.5 * (1.0 + tl.erf(x * SQRT_HALF))
    return x * cdf, cdf + x * INVERSE_SQRT_2PI * tl.exp(-0.5 * x * x)


@triton.jit
def _gated_with_slope(x, u, slope_of_u):
    """Value and derivative of x · sigmoid(u), u a function of x."""
    share = sigmoid(u)
    # sigmoid(-u), not 1 - share: that cancels where share is near 1, and the slope would lose three bits
    return x * share, share * (1.0 + x * sigmoid(-u) * slope_of_u)


@triton.jit
def _gelu_tanh_with_slope(x):
    cubic = x * x * GELU_CUBIC
    return _gated_with_slope(x, x * TWICE_SQRT_2_OVER_PI * (1.0 + cubic), (1.0 + 3.0 * cubic) * TWICE_SQRT_2_OVER_PI)


@triton.jit
def activate_with_slope(x, ACTIVATION: tl.constexpr):
    """The activation called ``ACTIVATION`` of ``x``, and its derivative there."""
    if ACTIVATION == "identity":
        y, slope = x, tl.full(x.shape, 1.0, tl.float32)
    elif ACTIVATION == "relu":
        y, slope = relu(x), tl.where(x <= 0.0, 0.0, 1.0)
    elif ACTIVATION == "relu_squared":
        y, slope = relu_squared(x), relu(x) * 2.0
    elif ACTIVATION == "sigmoid":
        y = sigmoid(x)
        slope = y * (1.0 - y)
    elif ACTIVATION == "tanh":
        y = tanh(x)
        slope = 1.0 - y * y
    elif ACTIVATION == "silu":
        y, slope = _gated_with_slope(x, x, 1.0)
    elif ACTIVATION == "gelu":
        y, slope = _gelu_with_slope(x)
    elif ACTIVATION == "gelu_tanh":
        y, slope = _gelu_tanh_with_slope(x)
    else:
        tl.static_assert(ACTIVATION == "quick_gelu", "no such activation")
        y, slope = _gated_with_slope(x, x * QUICK_GELU_SCALE, QUICK_GELU_SCALE)
    return y, slope

"""One short call of each replacement, as it stands on its page; a test runs them all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NORM = "x, weight = torch.randn(4, 64, requires_grad=True), torch.ones(64)"
_TWO = "x, residual = torch.randn(4, 64), torch.randn(4, 64)"
_HEADS = "q, k, v = (torch.randn(1, 8, 32, 64) for _ in range(3))  # (batch, heads, length, head_dim)"

EXAMPLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rms_norm": f"{_NORM}\ny = rms_norm(x, weight, eps=1e-6)\ny.sum().backward()",
        "add_rms_norm": f"{_TWO}\ny, total = add_rms_norm(x, residual, torch.ones(64))",
        "layer_norm": f"{_NORM}\ny = layer_norm(x, weight, torch.zeros(64), eps=1e-5)",
        "add_layer_norm": f"{_TWO}\ny, total = add_layer_norm(x, residual, torch.ones(64), torch.zeros(64))",
        "softmax": "scores = torch.randn(1, 8, 32, 32)\np = softmax(scores, scale=0.125, causal=True)",
        "cross_entropy": (
            "logits, target = torch.randn(4, 1000, requires_grad=True), torch.tensor([3, 14, -100, 15])\n"
            "loss = cross_entropy(logits, target)  # a target of -100 is ignored\nloss.backward()"
        ),
        "linear_cross_entropy": (
            "hidden, weight = torch.randn(4, 64), torch.randn(1000, 64)\n"
            "loss = linear_cross_entropy(hidden, weight, torch.tensor([3, 14, -100, 15]))"
        ),
        "qk_norm_rope": (
            "q, k = torch.randn(1, 8, 32, 64), torch.randn(1, 2, 32, 64)  # (batch, heads, length, head_dim)\n"
            "angle = torch.randn(1, 32, 64)\n"
            "q, k = qk_norm_rope(q, k, torch.ones(64), torch.ones(64), angle.cos(), angle.sin())"
        ),
        "act_mul": "gate, up = torch.randn(4, 64), torch.randn(4, 64)\ny = act_mul(gate, up, 'silu')",
        "relu_squared": "y = relu_squared(torch.randn(4, 64))",
        "quick_gelu": "y = quick_gelu(torch.randn(4, 64))",
        "bias_act": "y = bias_act(torch.randn(4, 64), torch.randn(64), 'gelu')",
        "dropout_add": f"{_TWO}\ny = dropout_add(x, residual, p=0.1)",
        "rope": (
            "q, k = torch.randn(1, 8, 32, 64), torch.randn(1, 2, 32, 64)  # (batch, heads, length, head_dim)\n"
            "angle = torch.randn(1, 32, 64)\nq, k = rope(q, k, angle.cos(), angle.sin())"
        ),
        "elementwise_chain": (
            "def cap(x):\n    return 30.0 * torch.tanh(x / 30.0)\n\ny = elementwise_chain(cap, torch.randn(4, 64))"
        ),
        "linear_epilogue": (
            "x, weight, bias = torch.randn(4, 64), torch.randn(128, 64), torch.zeros(128)\n"
            "y = linear_epilogue(x, weight, bias, 'gelu')"
        ),
        "int8_linear": (
            "from fused_replacements import quantize_int8\n\n"
            "packed = quantize_int8(torch.randn(128, 64))  # values, scale, zero\n"
            "y = int8_linear(torch.randn(4, 64), *packed)"
        ),
        "int4_linear": (
            "from fused_replacements import quantize_int4\n\n"
            "packed = quantize_int4(torch.randn(128, 64), group=32)  # packed, scale, zero\n"
            "y = int4_linear(torch.randn(4, 64), *packed)"
        ),
        "packed_linear": (
            "from fused_replacements import PackedLinears\n\n"
            "layers = [torch.nn.Linear(64, 64), torch.nn.Linear(64, 16), torch.nn.Linear(64, 16)]\n"
            "qkv = PackedLinears(layers)  # the parameters become views of one buffer\n"
            "q, k, v = qkv(torch.randn(4, 64))  # packed_linear(x, weights, biases), one product"
        ),
        "attention": f"{_HEADS}\ny = attention(q, k, v, causal='upper_left')",
        "flash_attention": f"{_HEADS}\ny = flash_attention(q, k, v, causal='upper_left', window=16, softcap=50.0)",
        "fused_optimizer": (
            "model = torch.nn.Linear(64, 64)\noptimizer = torch.optim.AdamW(model.parameters())\n"
            "with fused_optimizer(optimizer) as fused:  # or keep the handle, and fused.restore() at the end\n"
            "    model(torch.randn(4, 64)).sum().backward()\n    optimizer.step()\n"
            "    print(fused.modes, fused.reasons)  # how each group steps, or why it does not"
        ),
    }
)

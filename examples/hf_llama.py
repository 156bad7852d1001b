"""Hugging Face's Llama, built from a config: no download, random weights.

    pip install 'fusion-auditor[examples]'
    fusion-audit run examples/hf_llama.py
    fusion-audit run examples/hf_llama.py --generate

The code that is audited lies in the transformers package, unmodified; source lines in the report point into it.
With --generate the audited steps are single tokens with a KV cache: tiny kernels, where launches cost more
than memory, which the report's step-time column shows.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description="Run transformers' Llama on random tokens.")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--generate", action="store_true", help="generate one token a step instead of reading a prompt")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 3,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 32,
        num_key_value_heads=args.hidden // 64,
        vocab_size=4096,
        max_position_embeddings=args.length + args.steps + 1,
        attn_implementation=args.attention,
    )
    model = LlamaForCausalLM(config).to(device).eval()
    tokens = torch.randint(3, 4096, (args.batch, args.length), device=device)
    with torch.inference_mode():
        if args.generate:
            mask = torch.ones_like(tokens)
            out = model.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=args.steps,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        else:
            for _ in range(args.steps):
                out = model(tokens, use_cache=False).logits
    print(f"{args.steps} steps, result {tuple(out.shape)}")


if __name__ == "__main__":
    main()

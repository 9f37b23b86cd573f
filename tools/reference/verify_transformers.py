"""Compares the V4 reference with transformers' DeepseekV4 on the same weights, activations not quantised.

    pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    python ../../benches/peers/make_large.py --preset small --native NATIVE --bf16 BF16
    python verify_transformers.py NATIVE BF16 [--tokens 600]

The reference reads the stored formats, transformers their dequantised copy: this also proves that the two forms of
a generated checkpoint are one model. Ends with 1 when the logits differ by more than 1e-3 of their rms.
"""
import argparse
import sys

import torch
from transformers import AutoModelForCausalLM

from fathom_ref import PLAIN, Model, Weights, load_config

TOLERANCE = 1e-3   # of the logits' rms; fp32 sums in another order, measured 1e-5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("native")
    parser.add_argument("bf16")
    parser.add_argument("--tokens", type=int, default=600)
    args = parser.parse_args()

    config = load_config(args.native)
    tokens = torch.randint(3, config.vocab, (args.tokens,), generator=torch.Generator().manual_seed(1))
    prefilled = args.tokens - 16
    theirs = AutoModelForCausalLM.from_pretrained(args.bf16, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        model = Model(config, Weights(args.native, config), PLAIN)
        mine = model.forward(tokens, model.new_state())
        once = theirs(input_ids=tokens[None]).logits[0]
        out = theirs(input_ids=tokens[None, :prefilled], use_cache=True)
        stepped = [out.logits[0]]
        for i in range(prefilled, args.tokens):
            out = theirs(input_ids=tokens[None, i:i + 1], use_cache=True, cache=out.cache)
            stepped.append(out.logits[0])

    worst = 0.0
    for how, other in (("in one call", once), ("prefill and decode", torch.cat(stepped))):
        rms = other.square().mean().sqrt()
        difference = (mine - other).abs().max() / rms
        worst = max(worst, difference.item())
        print(f"transformers {how}: largest difference {difference:.1e} of the logits' rms {rms:.2f}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())

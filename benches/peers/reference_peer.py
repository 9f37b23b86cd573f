"""Times the readable PyTorch reference (tools/reference) on CPU, for V4.1, which no installable PyTorch engine reads.

    pip install torch==2.15.0 safetensors numpy tokenizers
    python reference_peer.py MODEL

It is plain PyTorch in float32: written for reading, matrices dequantised once and kept, one sequence at a time, so a
batch runs one after another. A mark to compare with, not a rival.
"""

import os
import sys

import torch

from common import arguments, emit, now, prompt, vocab_of

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "reference"))
from fathom_ref import PLAIN, Model, Weights, load_config  # noqa: E402
from fathom_ref.engram import token_map_of  # noqa: E402


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    config = load_config(args.model)
    model = Model(config, Weights(args.model, config), PLAIN, token_map_of(args.model, config))
    prompts = [prompt(args.prompt, vocab_of(args.model), row) for row in range(args.batch)]

    prefill, decode, first = [], [], []
    with torch.inference_mode():
        model.forward(prompts[0], model.new_state())  # dequantises the weights
        for _ in range(args.tries):
            states = [model.new_state() for _ in prompts]
            start = now()
            rows = [[int(model.forward(ids, state)[-1].argmax())] for ids, state in zip(prompts, states)]
            prefill.append(now() - start)

            start = now()
            for _ in range(args.decode):
                for row, state in zip(rows, states):
                    row.append(int(model.forward(row[-1:], state)[-1].argmax()))
            decode.append(now() - start)
            first = rows[0][:8]

    emit("reference", f"torch {torch.__version__}", args, prefill, decode, dtype="float32", first_tokens=first)


if __name__ == "__main__":
    main()

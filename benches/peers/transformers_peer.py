"""Times transformers on CPU. MODEL: a bf16 directory (make_large.py --bf16).

    pip install torch==2.15.0 transformers==5.24.0 safetensors
    python transformers_peer.py MODEL [--dtype float32|bfloat16] [--experts grouped_mm|batched_mm|eager]
"""

import torch
import transformers

from common import arguments, emit, now, prompt, vocab_of


def extra(parser):
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--experts", default="grouped_mm", choices=["grouped_mm", "batched_mm", "eager"])


def main():
    args = arguments(extra)
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="eager").eval()
    model.set_experts_implementation(args.experts)
    vocab = vocab_of(args.model)
    ids = torch.tensor([prompt(args.prompt, vocab, row) for row in range(args.batch)])

    prefill, decode, first = [], [], []
    with torch.inference_mode():
        for _ in range(args.tries):
            start = now()
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            tokens = [out.logits[:, -1:].argmax(-1)]
            prefill.append(now() - start)

            start = now()
            for _ in range(args.decode):
                out = model(input_ids=tokens[-1], use_cache=True, cache=out.cache)
                tokens.append(out.logits[:, -1:].argmax(-1))
            decode.append(now() - start)
            first = [int(step[0, 0]) for step in tokens[:8]]

    version = f"{transformers.__version__}, torch {torch.__version__}"
    emit("transformers", version, args, prefill, decode, dtype=args.dtype, experts=args.experts, first_tokens=first)


if __name__ == "__main__":
    main()

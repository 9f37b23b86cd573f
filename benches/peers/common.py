"""What the peer runners share: arguments, the prompt, one JSON line out."""

import argparse
import json
import os
import statistics
import time

now = time.perf_counter

# Ids at both ends of a vocabulary have a meaning: begin, end, pad; roles and image places.
FIRST_PLAIN, SPECIAL = 3, 128


def arguments(extra=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--decode", type=int, default=32, help="tokens to generate after the first")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tries", type=int, default=3)
    if extra:
        extra(parser)
    return parser.parse_args()


def prompt(length, vocab, row=0):
    """The same ids for every engine, none of them special; `prompt` of forward.rs is its twin."""
    plain = vocab - FIRST_PLAIN - SPECIAL
    return [FIRST_PLAIN + (i * 7919 + row * 104729 + 17) % plain for i in range(length)]


def vocab_of(model):
    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    return config.get("text_config", config)["vocab_size"]


def emit(peer, version, args, prefill_s, decode_s, **more):
    """Prints the line. One wall time a try: for prompt x batch tokens, and for decode x batch tokens."""
    prefilled, decoded = args.prompt * args.batch, args.decode * args.batch
    line = dict(
        peer=peer, version=version, batch=args.batch, prompt=args.prompt, decode=args.decode, threads=args.threads,
        tries=args.tries,
        prefill_tok_s=round(prefilled / min(prefill_s), 2),
        decode_tok_s=round(decoded / min(decode_s), 2),
        prefill_tok_s_median=round(prefilled / statistics.median(prefill_s), 2),
        decode_tok_s_median=round(decoded / statistics.median(decode_s), 2),
        load1=round(os.getloadavg()[0], 1), **more)
    print(json.dumps(line), flush=True)

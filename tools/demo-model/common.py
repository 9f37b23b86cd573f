"""What several scripts share: the readable reference on the import path, and the engram address tables."""
import os
import sys

REFERENCE = os.environ.get("FATHOM_REFERENCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
sys.path[:0] = [REFERENCE]

from fathom_ref import quant                                                   # noqa: E402, F401 (for export.py)
from fathom_ref.engram import bucket_sizes, compressed_token_map, multipliers  # noqa: E402


def engram_setup(tokenizer_file, c):
    """-> (token map, table sizes [layer][order][head], multipliers [layer, order], compressed vocabulary size)"""
    from tokenizers import Tokenizer
    table, n = compressed_token_map(Tokenizer.from_file(tokenizer_file))
    table = table + [0] * (c["vocab"] - len(table))
    sizes = bucket_sizes(len(c["engram_layers"]), c["ngram"], c["engram_heads"], c["engram_vocab"])
    return table, sizes, multipliers(c["engram_layers"], c["ngram"], n), n


def build(tokenizer_file, c, **extra):
    from tokenizers import Tokenizer
    from net import Net
    table, sizes, mult, _ = engram_setup(tokenizer_file, c)
    noise = Tokenizer.from_file(tokenizer_file).token_to_id("<｜System｜>")
    return Net(c, sizes, mult, table, noise_id=noise, **extra)

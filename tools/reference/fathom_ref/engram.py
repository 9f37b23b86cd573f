"""Engram addressing: which rows of the n-gram tables a token reads.

token id -> compressed id -> hash of the 2-, 3-, .. n-gram ending here -> table rows.
All integers are signed 64-bit; products stay below 2**63 by construction.
"""
import os
import re
import unicodedata

import numpy as np

DEAD = -1            # compressed id of a position that takes no part in n-grams (image tokens)
SENTINEL = "\ue000"


def is_prime(n):
    if n < 2:
        return False
    for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        if n % p == 0:
            return n == p
    d, r = n - 1, 0
    while d % 2 == 0:
        d, r = d // 2, r + 1
    for a in (2, 3, 5, 7, 11, 13, 17):          # deterministic far beyond the sizes used here
        x = pow(a, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(r - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def bucket_sizes(n_layers, ngram, heads, vocab):
    """[layer][order][head] table sizes: successive unused primes >= vocab.

    The search restarts at `vocab` for every (layer, order) pair, but a prime is
    never handed out twice anywhere, so the sizes keep growing.
    """
    used, out = set(), []
    for _ in range(n_layers):
        orders = []
        for _ in range(ngram - 1):
            sizes, p = [], vocab - 1
            for _ in range(heads):
                p += 1
                while p in used or not is_prime(p):
                    p += 1
                used.add(p)
                sizes.append(p)
            orders.append(sizes)
        out.append(orders)
    return out


def multipliers(layer_ids, ngram, compressed_vocab):
    """Odd multiplier per (layer, look-back distance) from NumPy's default generator (PCG64)."""
    bound = max(1, (2 ** 63 - 1) // compressed_vocab // 2)
    rows = [np.random.default_rng(10007 * lid).integers(0, bound, size=(ngram,), dtype=np.int64) * 2 + 1
            for lid in layer_ids]
    return np.stack(rows)


def normalise(text):
    """Unicode NFKC -> NFD -> drop all marks (Mn, Mc, Me) -> lower-case char by char -> squeeze blanks -> trim.

    A string that is exactly one blank after squeezing stays one blank.  Documentation of what the
    `tokenizers` normaliser below does; `compressed_token_map` uses the library itself.
    """
    s = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    s = "".join(ch for ch in s if unicodedata.category(ch)[0] != "M")
    s = "".join(ch.lower() for ch in s)
    s = re.sub("[ \t\r\n]+", " ", s)
    if s == " ":
        s = SENTINEL
    return s.strip().replace(SENTINEL, " ")


def compressed_token_map(tokenizer):
    """Lookup token id -> compressed id for a `tokenizers.Tokenizer`; ids appear in first-seen order."""
    from tokenizers import Regex, normalizers as nz

    norm = nz.Sequence([nz.NFKC(), nz.NFD(), nz.StripAccents(), nz.Lowercase(),
                        nz.Replace(Regex("[ \\t\\r\\n]+"), " "), nz.Replace(Regex("^ $"), SENTINEL),
                        nz.Strip(), nz.Replace(SENTINEL, " ")])
    seen, table = {}, []
    for tid in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([tid], skip_special_tokens=False)
        if "\ufffd" in text:                      # fragment of a multi-byte character
            key = tokenizer.id_to_token(tid)
        else:
            key = norm.normalize_str(text) or text
        table.append(seen.setdefault(key, len(seen)))
    return table, len(seen)


def token_map_of(path, cfg):
    """The lookup for a checkpoint directory with a `tokenizer.json`; None for a model without engram."""
    if not cfg.engram_layers:
        return None
    from tokenizers import Tokenizer

    table, _ = compressed_token_map(Tokenizer.from_file(os.path.join(path, "tokenizer.json")))
    return table + [0] * (cfg.vocab - len(table))   # ids without a token never occur


class EngramHash:
    def __init__(self, cfg, token_map):
        self.cfg, self.map = cfg, np.asarray(token_map, dtype=np.int64)
        assert self.map.max() + 1 == cfg.engram_compressed_vocab
        self.pad = int(self.map[cfg.engram_pad])
        self.sizes = bucket_sizes(len(cfg.engram_layers), cfg.engram_ngram, cfg.engram_heads, cfg.engram_vocab)
        self.mult = multipliers(cfg.engram_layers, cfg.engram_ngram, cfg.engram_compressed_vocab)

    def rows(self, which, history, count):
        """Row ids [count, (ngram-1)*heads] of the last `count` entries of `history` (compressed ids)."""
        n, out = self.cfg.engram_ngram, []
        flat = [p for order in self.sizes[which] for p in order]
        offset = np.concatenate([[0], np.cumsum(flat)[:-1]])
        for t in range(len(history) - count, len(history)):
            ids, blocked = [], False
            for back in range(n):
                blocked = blocked or t - back < 0 or history[t - back] == DEAD
                ids.append(self.pad if blocked else int(history[t - back]))
            acc, cols = ids[0] * int(self.mult[which, 0]), []
            for back in range(1, n):
                acc ^= ids[back] * int(self.mult[which, back])
                cols += [acc % p for p in self.sizes[which][back - 1]]
            out.append(np.array(cols, dtype=np.int64) + offset)
        return np.stack(out)

"""DeepSeek V4 / V4.1 text backbone for one sequence.

`Model.forward(tokens, state)` accepts any number of tokens at a time, so prefill,
chunked prefill and decode are the same code; `state` carries what later calls need.

Shapes: S tokens in this call, D model width, N residual streams, H heads, E head width,
R rotary width, W window.
"""
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from . import quant
from .engram import DEAD, EngramHash


@dataclass
class Numerics:
    dtype: torch.dtype = torch.float32     # arithmetic
    store: torch.dtype = None              # round activations to this type where the official code does
    act: bool = False                      # FP8 activations in front of FP8/FP4 matrices
    kv: bool = False                       # quantised KV entries
    index: bool = False                    # quantised indexer queries/keys (plus Hadamard on V4)


PLAIN = Numerics()
PLAIN64 = Numerics(torch.float64)
QAT = Numerics(act=True, kv=True, index=True)
QAT64 = Numerics(torch.float64, act=True, kv=True, index=True)
BF16 = Numerics(store=torch.bfloat16, act=True, kv=True, index=True)


@dataclass
class PoolState:
    """Compressor inputs that a later token still needs: the open group, and with overlap the group before it."""
    kv: torch.Tensor = None
    gate: torch.Tensor = None
    groups: int = 0                        # groups finished so far


@dataclass
class LayerState:
    window: torch.Tensor = None            # last W-1 window KV rows [<=W-1, E]
    pool: PoolState = field(default_factory=PoolState)
    comp: torch.Tensor = None              # compressed KV rows
    ipool: PoolState = field(default_factory=PoolState)     # the V4 indexer has its own compressor
    ikeys: torch.Tensor = None             # indexer keys


@dataclass
class State:
    pos: int = 0
    layers: list = field(default_factory=list)
    ngram: list = field(default_factory=list)   # compressed token ids (only the last ngram-1 matter)


def top_indices(score, k):
    """Indices of the k largest entries per row; equal scores: the lower index wins."""
    return torch.sort(score, dim=-1, descending=True, stable=True).indices[..., :k]


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Model:
    def __init__(self, cfg, weights, numerics=PLAIN, token_map=None):
        self.c, self.w, self.n = cfg, weights, numerics
        assert weights.dtype == numerics.dtype
        self.hash = EngramHash(cfg, token_map) if cfg.engram_layers and token_map is not None else None
        self.plain_freq = self._freqs(cfg.rope_theta, False)
        self.comp_freq = self._freqs(cfg.compress_theta, cfg.yarn_orig > 0)

    def r(self, x):
        return x if self.n.store is None else x.to(self.n.store).to(x.dtype)

    def lin(self, stem, x):
        m, quantised = self.w.mat(stem)
        if quantised and self.n.act:
            x = quant.fake_fp8(x, self.c.act_block)
        return self.r(x @ m.T)

    def lin32(self, stem, x):              # never rounded, never activation-quantised
        return x @ self.w.mat(stem)[0].T

    def norm(self, name, x):
        return self.r(self.w.vec(name) * rms(x, self.c.norm_eps))

    def _freqs(self, base, yarn):
        c, dim = self.c, self.c.rope_dim
        f = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
        if yarn:
            def turn_dim(turns):
                return dim * np.log(c.yarn_orig / (turns * 2 * np.pi)) / (2 * np.log(base))
            lo = max(int(np.floor(turn_dim(c.yarn_fast))), 0)
            hi = min(int(np.ceil(turn_dim(c.yarn_slow))), dim - 1)
            ramp = ((torch.arange(dim // 2, dtype=torch.float32) - lo) / max(hi - lo, 1e-3)).clamp(0, 1)
            f = f / c.yarn_factor * ramp + f * (1 - ramp)
        return f

    def rope(self, x, pos, freq, inverse=False):
        """Rotate adjacent pairs of the last R channels of x [S, ..., *] by pos [S]."""
        rd = self.c.rope_dim
        ang = (pos.float()[:, None] * freq).double()            # the angle itself is an fp32 product
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        if inverse:
            sin = -sin
        shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (rd // 2,)
        cos, sin = cos.view(shape), sin.view(shape)
        even, odd = x[..., -rd::2], x[..., -rd + 1::2]
        rot = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
        return torch.cat([x[..., :-rd], self.r(rot)], dim=-1)

    def mixes(self, x, stem):
        """Per-token pre [S,N], post [S,N], comb [S,N,N] from the streams x [S,N,D]."""
        c, n = self.c, self.c.hc
        flat = x.flatten(1)
        mix = (flat @ self.w.vec(stem + "_fn").T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + c.norm_eps)
        scale, base = self.w.vec(stem + "_scale"), self.w.vec(stem + "_base")
        pre = torch.sigmoid(mix[:, :n] * scale[0] + base[:n]) + c.hc_eps
        post = 2 * torch.sigmoid(mix[:, n:2 * n] * scale[1] + base[n:2 * n])
        m = (mix[:, 2 * n:] * scale[2] + base[2 * n:]).view(-1, n, n)
        m = torch.softmax(m, dim=-1) + c.hc_eps
        m = m / (m.sum(-2, keepdim=True) + c.hc_eps)
        for _ in range(c.hc_iters - 1):
            m = m / (m.sum(-1, keepdim=True) + c.hc_eps)
            m = m / (m.sum(-2, keepdim=True) + c.hc_eps)
        return pre, post, m

    def collapse(self, x, pre):
        return self.r((pre[..., None] * x).sum(1))

    def expand(self, y, x, post, comb):
        # new stream k = post[k] * y + sum_j comb[j, k] * old stream j
        return self.r(post[..., None] * y[:, None] + torch.einsum("sjk,sjd->skd", comb, x))

    def pool(self, stem, x, ps, ratio, width, overlap):
        """Append tokens x and return the latents [G, width] of the groups that became complete, plus the first group's id.

        With overlap every token projects to 2*width channels: the first half serves the NEXT group,
        the second half the token's own group, so a latent mixes 2*ratio candidates (ratio for group 0).
        """
        kv = x @ self.w.mat(stem + ".wkv")[0].T
        gate = x @ self.w.mat(stem + ".wgate")[0].T
        if ps.kv is not None:
            kv, gate = torch.cat([ps.kv, kv]), torch.cat([ps.gate, gate])
        keep = 1 if overlap else 0
        start = max(ps.groups - keep, 0) * ratio                 # absolute position of row 0
        first, done = ps.groups, (start + len(kv)) // ratio
        bias = self.w.vec(stem + ".ape") if self.w.has(stem + ".ape") else torch.zeros(ratio, 1, dtype=x.dtype)
        out = []
        for g in range(first, done):
            i = g * ratio - start
            k, z = kv[i:i + ratio], gate[i:i + ratio] + bias
            if overlap:
                k, z = k[:, width:], z[:, width:]
                if g > 0:
                    k = torch.cat([kv[i - ratio:i, :width], k])
                    z = torch.cat([gate[i - ratio:i, :width] + bias[:, :width], z])
            out.append((torch.softmax(z, dim=0) * k).sum(0))     # every channel has its own softmax over tokens
        cut = max(done - keep, 0) * ratio - start
        ps.kv, ps.gate, ps.groups = kv[cut:], gate[cut:], done
        return (torch.stack(out) if out else kv.new_zeros(0, width)), first

    def compress(self, l, x, st, pos0):
        """V4 (ratio 4 / 128) and V4.1 (ratio 2 / 1) main compressor: finished pre-rotation latents."""
        ratio, stem = self.c.ratios[l], f"layers.{l}.attn.compressor"
        if ratio == 1:
            return self.norm(stem + ".norm.weight", self.r(self.lin32(stem + ".wkv", x))), pos0
        rows, first = self.pool(stem, x, st.pool, ratio, self.c.head_dim, overlap=ratio == 4)
        return self.norm(stem + ".norm.weight", self.r(rows)), first

    def index_query(self, l, x, qr, pos):
        c, stem = self.c, f"layers.{l}.attn.indexer"
        q = self.lin(stem + ".wq_b", qr).view(len(x), c.index_heads, c.index_dim)
        q = self.rope(q, pos, self.comp_freq)
        w = self.r(self.lin32(stem + ".weights_proj", x))
        if c.arch == "v4":                     # a positive constant; V4.1 leaves it out, so its BF16 scores round unscaled
            w = w * (c.index_dim ** -0.5 * c.index_heads ** -0.5)
        return self.index_quant(q), w

    def index_quant(self, t):
        if not self.n.index:
            return t
        if self.c.arch == "v4":
            t = self.r(quant.hadamard(t))
        return quant.fake_fp4_e8m0(t, 32)

    def index_score(self, q, w, keys, pos, ratio):
        score = (torch.einsum("shd,td->sht", q, keys).relu() * w[..., None]).sum(1)
        if self.c.arch == "v41":
            score = self.r(score)
        visible = (pos + 1) // ratio
        hidden = torch.arange(len(keys))[None] >= visible[:, None]
        return score.masked_fill(hidden, -torch.inf)

    def pick(self, score):
        """Row-wise top-k as ascending ids padded with -1 at the end."""
        k = min(self.c.index_topk, score.shape[1])
        ids = top_indices(score, k)
        ok = torch.gather(score, 1, ids) > -torch.inf
        big = score.shape[1]
        ids = torch.where(ok, ids, big).sort(-1).values
        return torch.where(ids == big, -1, ids)

    def candidate_blocks(self, score, pos, ratio, tap=lambda name, value: None):
        """Level one of V4.1's two-level selection: which blocks of positions stay eligible, [S, blocks]."""
        c, b = self.c, self.c.cand_block_size
        pad = -score.shape[1] % b
        best = F.pad(score, (0, pad), value=-torch.inf).unflatten(1, (-1, b)).amax(-1)
        newest = ((pos + 1) // ratio - 1) // b          # block of the newest visible entry is always kept
        best = best.masked_fill(torch.arange(best.shape[1])[None] == newest[:, None], torch.inf)
        tap("block_score", best)
        ids = top_indices(best, min(c.cand_blocks, best.shape[1]))
        keep = torch.zeros_like(best, dtype=torch.bool)
        return keep.scatter(1, ids, torch.gather(best, 1, ids) > -torch.inf)

    def attention(self, l, x, pos, state, shared, tap):
        c, st = self.c, state.layers[l]
        a, ratio, s = f"layers.{l}.attn", c.ratios[l], len(x)
        freq = self.comp_freq if ratio else self.plain_freq

        qr = self.norm(a + ".q_norm.weight", self.lin(a + ".wq_a", x))
        q = self.lin(a + ".wq_b", qr).view(s, c.heads, c.head_dim)
        if c.q_head_norm:
            q = self.r(rms(q, c.norm_eps))
        q = self.rope(q, pos, freq)

        kv = self.norm(a + ".kv_norm.weight", self.lin(a + ".wkv", x))
        kv = self.quant_window(self.rope(kv, pos, freq))
        win = kv if st.window is None else torch.cat([st.window, kv])
        win_pos = torch.arange(int(pos[0]) - (len(win) - s), int(pos[-1]) + 1)
        st.window = win[-(c.window - 1):]
        seen = (win_pos[None] <= pos[:, None]) & (win_pos[None] > pos[:, None] - c.window)

        keys, mask = win, seen
        if ratio:
            comp, chosen = (self.select_v4 if c.arch == "v4" else self.select_v41)(l, x, qr, pos, st, shared, tap)
            keys, mask = torch.cat([win, comp]), torch.cat([seen, chosen], 1)

        score = torch.einsum("shd,td->sht", q, keys) * c.head_dim ** -0.5
        score = score.masked_fill(~mask[:, None], -torch.inf)
        sink = self.w.vec(a + ".attn_sink")[None, :, None].expand(s, -1, 1)
        prob = torch.softmax(torch.cat([score, sink], -1), -1)[..., :-1]      # the sink absorbs weight, adds no value
        o = self.r(torch.einsum("sht,td->shd", self.r(prob), keys))
        o = self.rope(o, pos, freq, inverse=True)

        o = o.reshape(s, c.o_groups, -1)                                       # heads of one group are contiguous
        wo_a = self.w.mat(a + ".wo_a")[0].view(c.o_groups, c.o_rank, -1)
        if c.quant_wo_a and self.n.act:                                        # FP8 in, and straight to FP8 for wo_b
            return self.lin(a + ".wo_b", torch.einsum("sgd,grd->sgr", quant.fake_fp8(o, c.act_block), wo_a).flatten(1))
        return self.lin(a + ".wo_b", self.r(torch.einsum("sgd,grd->sgr", o, wo_a)).flatten(1))

    def quant_window(self, kv):
        if not self.n.kv:
            return kv
        if self.c.arch == "v41":
            return self.r(quant.fake_fp8(kv, 32))
        rd = self.c.rope_dim
        return torch.cat([self.r(quant.fake_fp8(kv[:, :-rd], 64)), kv[:, -rd:]], -1)

    def mask_of(self, ids, width):
        m = torch.zeros(ids.shape[0], width + 1, dtype=torch.bool)
        return m.scatter(1, torch.where(ids < 0, width, ids), True)[:, :width]

    def select_v4(self, l, x, qr, pos, st, shared, tap):
        c, ratio = self.c, self.c.ratios[l]
        rows, first = self.compress(l, x, st, int(pos[0]))
        gpos = (first + torch.arange(len(rows))) * ratio                       # a group sits at its first token
        rows = self.quant_window(self.rope(rows, gpos, self.comp_freq))
        st.comp = rows if st.comp is None else torch.cat([st.comp, rows])
        if ratio != 4:                                                         # heavily compressed: all visible entries
            return st.comp, torch.arange(len(st.comp))[None] < ((pos + 1) // ratio)[:, None]

        stem = f"layers.{l}.attn.indexer.compressor"
        q, w = self.index_query(l, x, qr, pos)
        rows, first = self.pool(stem, x, st.ipool, ratio, c.index_dim, overlap=True)
        k = self.norm(stem + ".norm.weight", self.r(rows))
        k = self.index_quant(self.rope(k, (first + torch.arange(len(k))) * ratio, self.comp_freq))
        st.ikeys = k if st.ikeys is None else torch.cat([st.ikeys, k])
        score = self.index_score(q, w, st.ikeys, pos, ratio)
        ids = self.pick(score)
        tap(f"score.{l}", score), tap(f"topk.{l}", ids)
        return st.comp, self.mask_of(ids, len(st.comp))

    def select_v41(self, l, x, qr, pos, st, shared, tap):
        c, ratio, stem = self.c, self.c.ratios[l], f"layers.{l}.attn.indexer"
        latent = None
        if l in c.kv_sources:
            latent, first = self.compress(l, x, st, int(pos[0]))
            gpos = (first + torch.arange(len(latent))) * ratio
            # index keys come from the latent BEFORE rotation
            k = self.norm(stem + ".k_norm.weight", self.r(self.lin32(stem + ".wk", latent)))
            k = self.index_quant(self.rope(k, gpos, self.comp_freq))
            st.ikeys = k if st.ikeys is None else torch.cat([st.ikeys, k])
            rows = self.rope(latent, gpos, self.comp_freq)
            if self.n.kv:
                rows = self.r(quant.fake_fp4_e4m3(rows, 16) if c.kv_fp4 else quant.fake_fp8(rows, 32))
            st.comp = rows if st.comp is None else torch.cat([st.comp, rows])
            shared["kv"], shared["keys"] = st.comp, st.ikeys
        if l in c.index_sources:
            q, w = self.index_query(l, x, qr, pos)
            score = self.index_score(q, w, shared["keys"], pos, ratio)
            tap(f"score.{l}", score)
            if l == c.cand_source:
                shared["cand"] = self.candidate_blocks(score, pos, ratio, tap)
                tap(f"candidates.{l}", shared["cand"])
            elif 0 <= c.cand_source < l:
                keep = shared["cand"].repeat_interleave(c.cand_block_size, 1)[:, :score.shape[1]]
                score = score.masked_fill(~keep, -torch.inf)
                tap(f"score_masked.{l}", score)
            shared["ids"] = self.pick(score)
            tap(f"topk.{l}", shared["ids"])
        return shared["kv"], self.mask_of(shared["ids"], len(shared["kv"]))

    def expert(self, stem, x, weight=None):
        gate, up, lim = self.lin(stem + ".w1", x), self.lin(stem + ".w3", x), self.c.swiglu_limit
        if lim > 0:
            gate, up = gate.clamp(max=lim), up.clamp(-lim, lim)
        h = F.silu(gate) * up
        if weight is not None:
            h = h * weight
        return self.lin(stem + ".w2", h if self.c.arch == "v41" else self.r(h))    # V4.1: fp32 straight to FP8

    def moe(self, l, x, tokens, tap, image=None):
        c, stem = self.c, f"layers.{l}.ffn"
        score = F.softplus(self.lin32(stem + ".gate", x)).sqrt()
        if l < c.hash_layers:
            ids = self.w.raw(stem + ".gate.tid2eid").long()[tokens]
        else:
            bias = self.w.vec(stem + ".gate.bias")[None].expand_as(score)
            if image is not None and self.w.has(stem + ".gate.bias_vl"):
                bias = torch.where(image[:, None], self.w.vec(stem + ".gate.bias_vl"), bias)
            tap(f"route_score.{l}", score + bias)
            ids = top_indices(score + bias, c.topk_experts)                    # the bias only steers the choice
        wt = torch.gather(score, 1, ids)
        wt = wt / (wt.sum(-1, keepdim=True) + 1e-20) * c.route_scale
        order = ids.argsort(-1)
        tap(f"experts.{l}", ids.gather(1, order)), tap(f"expert_weight.{l}", wt.gather(1, order))
        y = torch.zeros_like(x)
        for e in ids.unique().tolist():
            t, slot = torch.where(ids == e)
            y[t] += self.expert(f"{stem}.experts.{e}", x[t], wt[t, slot, None])
        return self.r(y + self.expert(stem + ".shared_experts", x))

    def engram(self, l, h, ids, image=None):
        """Add the gated n-gram memory to every stream; `ids` are table rows [S, columns]."""
        c, stem, s = self.c, f"layers.{l}.engram", len(h)
        rows = self.w.engram_rows(l, ids).flatten(1)     # already FP8 with a scale per 32: the GEMM input as it is
        kv = self.r(rows @ self.w.mat(stem + ".wkv")[0].T)
        key, value = kv[:, :c.hc * c.dim].view(s, c.hc, c.dim), kv[:, c.hc * c.dim:]
        wgt = self.w.vec(stem + ".q_weight") * self.w.vec(stem + ".k_weight")
        dot = (h * wgt * key).sum(-1) * c.dim ** -0.5
        dot = dot * torch.rsqrt(h.square().mean(-1) + c.norm_eps) * torch.rsqrt(key.square().mean(-1) + c.norm_eps)
        gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
        if image is not None:
            gate = gate.masked_fill(image[:, None], 0)
        return self.r(h + gate[..., None] * value[:, None])

    def new_state(self):
        return State(layers=[LayerState() for _ in range(self.c.layers)])

    def forward(self, tokens, state, tap=None, image=None):
        """tokens: list of ids -> logits [S, vocab]; `state` advances by S. `tap(name, tensor)` observes."""
        c = self.c
        tap = tap or (lambda name, value: None)
        tok = torch.as_tensor(tokens)
        pos = state.pos + torch.arange(len(tok))
        if self.hash:
            ids = self.hash.map[tok.numpy()]
            if image is not None:
                ids = np.where(image.numpy(), DEAD, ids)
            state.ngram += ids.tolist()
        h = self.w.vec("embed.weight")[tok][:, None].repeat(1, c.hc, 1)
        pre = torch.zeros(len(tok), c.hc, dtype=h.dtype)
        pre[:, 0] = 1                                             # V4.1: the first sub-layer reads stream 0
        shared = {}
        for l in range(c.layers):
            if l in c.engram_layers:
                rows = self.hash.rows(c.engram_layers.index(l), state.ngram, len(tok))
                tap(f"engram_in.{l}", h), tap(f"engram_rows.{l}", torch.as_tensor(rows))
                h = self.engram(l, h, rows, image)
                tap(f"engram_out.{l}", h)
            for kind, nrm in (("attn", "attn_norm"), ("ffn", "ffn_norm")):
                own_pre, post, comb = self.mixes(h, f"layers.{l}.hc_{kind}")
                x = self.norm(f"layers.{l}.{nrm}.weight", self.collapse(h, pre if c.shifted_pre else own_pre))
                tap(f"{kind}_in.{l}", x)
                y = self.attention(l, x, pos, state, shared, tap) if kind == "attn" else self.moe(l, x, tok, tap, image)
                tap(f"{kind}_out.{l}", y)
                h, pre = self.expand(y, h, post, comb), own_pre
            tap(f"layer_out.{l}", h)
        if not c.shifted_pre:                                     # V4 has a dedicated collapse in front of the head
            flat = h.flatten(1)
            mix = (flat @ self.w.vec("hc_head_fn").T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + c.norm_eps)
            pre = torch.sigmoid(mix * self.w.vec("hc_head_scale") + self.w.vec("hc_head_base")) + c.hc_eps
        x = self.norm("norm.weight", self.collapse(h, pre))
        tap("final", x)
        state.pos += len(tok)
        return self.lin32("head", x)

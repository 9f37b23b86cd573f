"""Writes a random checkpoint of the DeepSeek V4 architecture in two forms that hold the same numbers.

    python make_large.py --native DIR --bf16 DIR [--preset large|small] [--seed N]

native: FP8 matrices with a power-of-two scale per 128 x 128 block, FP4 experts with one per 32 columns,
        in the published tensor names: what fathom reads.
bf16:   every matrix dequantised, without a quantization_config: what a peer without those formats reads.
        No value is lost: a stored number has at most 4 significant bits.

`large` keeps the real widths of V4-Flash (hidden 4096, 64 heads of 512, experts of 2048) and has few layers and
experts: 3 layers of ratios 0, 4 and 128, the first routed by the hash table. `index_topk` is 128, not 512, so that
prompts of 1024 tokens already select. About 1.2 GB native and 3.5 GB bf16. `small` has the same structure in
20 MB, to try things out.

Either DIR may be left out. Prints one JSON line per form, with the bytes that decoding one token reads.
Needs torch, safetensors.
"""

import argparse
import json
import os

import torch
from safetensors.torch import save_file

COMMON = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", attention_bias=False, attention_dropout=0.0,
    bos_token_id=0, eos_token_id=1, compress_rope_theta=160000, hc_eps=1e-6, hc_mult=4, hc_sinkhorn_iters=20,
    hidden_act="silu", max_position_embeddings=65536, n_shared_experts=1, norm_topk_prob=True, num_key_value_heads=1,
    num_nextn_predict_layers=0, qk_rope_head_dim=64, rms_norm_eps=1e-6, rope_theta=10000, routed_scaling_factor=1.5,
    scoring_func="sqrtsoftplus", sliding_window=128, swiglu_limit=10.0, tie_word_embeddings=False,
    topk_method="noaux_tc", torch_dtype="bfloat16", use_cache=True,
    rope_scaling=dict(type="yarn", rope_type="yarn", factor=16, beta_fast=32, beta_slow=1,
                      original_max_position_embeddings=4096),
    num_hidden_layers=3, compress_ratios=[0, 4, 128], num_hash_layers=1, num_experts_per_tok=6, n_routed_experts=16,
    index_head_dim=128, index_topk=128)
PRESETS = {
    "large": dict(vocab_size=16384, hidden_size=4096, num_attention_heads=64, head_dim=512, q_lora_rank=1024, o_groups=8,
                  o_lora_rank=1024, moe_intermediate_size=2048, index_n_heads=64),
    "small": dict(vocab_size=2048, hidden_size=512, num_attention_heads=8, head_dim=512, q_lora_rank=256, o_groups=2,
                  o_lora_rank=128, moe_intermediate_size=256, index_n_heads=8),
}
QUANTIZATION = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0",
                    weight_block_size=[128, 128])
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
FP8_SCALE_EXP = -11  # matrices have a deviation of at least 2^-7, so the largest values stay below 448 · 2^-11
E8M0_BIAS = 127


class Generator:
    """Draws tensors and keeps each in both forms, until `take` empties it."""

    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.native, self.bf16 = {}, {}

    def normal(self, *shape, std):
        return torch.randn(*shape, generator=self.random) * std

    def both(self, name, tensor):
        self.native[name] = self.bf16[name] = tensor.contiguous()

    def vector(self, name, size):
        self.both(name, (1 + self.normal(size, std=0.02)).bfloat16())

    def dense(self, name, rows, columns, std=None):
        self.both(name, self.normal(rows, columns, std=columns ** -0.5 if std is None else std).bfloat16())

    def fp8(self, name, rows, columns):
        q = (self.normal(rows, columns, std=columns ** -0.5) / 2.0 ** FP8_SCALE_EXP).clamp(-448, 448)
        q = q.to(torch.float8_e4m3fn)
        scale = torch.full(((rows + 127) // 128, (columns + 127) // 128), E8M0_BIAS + FP8_SCALE_EXP, dtype=torch.uint8)
        self.native[name + ".weight"] = q
        self.native[name + ".scale"] = scale.view(torch.float8_e8m0fnu)
        self.bf16[name + ".weight"] = (q.float() * 2.0 ** FP8_SCALE_EXP).bfloat16()

    def fp4(self, name, rows, columns):
        code = torch.randint(0, 16, (rows, columns), generator=self.random, dtype=torch.uint8)
        exponent = -2 - round(0.5 * torch.log2(torch.tensor(float(columns))).item())
        scale = torch.full((rows, columns // 32), E8M0_BIAS + exponent, dtype=torch.uint8)
        self.native[name + ".weight"] = (code[:, 0::2] | (code[:, 1::2] << 4)).view(torch.int8)
        self.native[name + ".scale"] = scale.view(torch.float8_e8m0fnu)
        self.bf16[name + ".weight"] = (E2M1[code.int()] * 2.0 ** exponent).bfloat16()

    def take(self):
        forms = dict(native=self.native, bf16=self.bf16)
        self.native, self.bf16 = {}, {}
        return forms


def ends(g, c):
    """Embedding, head and what stands around them."""
    vocab, dim, streams = c["vocab_size"], c["hidden_size"], c["hc_mult"]
    g.dense("embed.weight", vocab, dim, std=1.0)
    g.vector("norm.weight", dim)
    g.dense("head.weight", vocab, dim)
    g.both("hc_head_fn", g.normal(streams, streams * dim, std=0.02))
    g.both("hc_head_base", torch.zeros(streams))
    g.both("hc_head_scale", torch.ones(1))


def layer(g, c, index):
    dim, heads, head_dim, q_rank = (c[k] for k in ("hidden_size", "num_attention_heads", "head_dim", "q_lora_rank"))
    groups, o_rank, inter, experts = (c[k] for k in ("o_groups", "o_lora_rank", "moe_intermediate_size", "n_routed_experts"))
    streams, ratio, p = c["hc_mult"], c["compress_ratios"][index], f"layers.{index}."
    mixes = (2 + streams) * streams

    for part in ("attn", "ffn"):
        g.both(p + f"hc_{part}_fn", g.normal(mixes, streams * dim, std=0.02))
        g.both(p + f"hc_{part}_base", torch.zeros(mixes))
        g.both(p + f"hc_{part}_scale", torch.ones(3))
        g.vector(p + f"{part}_norm.weight", dim)

    g.both(p + "attn.attn_sink", torch.zeros(heads))
    g.vector(p + "attn.q_norm.weight", q_rank)
    g.vector(p + "attn.kv_norm.weight", head_dim)
    g.fp8(p + "attn.wq_a", q_rank, dim)
    g.fp8(p + "attn.wq_b", heads * head_dim, q_rank)
    g.fp8(p + "attn.wkv", head_dim, dim)
    g.fp8(p + "attn.wo_a", groups * o_rank, heads * head_dim // groups)
    g.fp8(p + "attn.wo_b", dim, groups * o_rank)
    if ratio:
        compressor(g, p + "attn.compressor", dim, head_dim, ratio)
    if ratio == 4:
        index_heads, index_dim = c["index_n_heads"], c["index_head_dim"]
        g.fp8(p + "attn.indexer.wq_b", index_heads * index_dim, q_rank)
        g.dense(p + "attn.indexer.weights_proj.weight", index_heads, dim, std=0.02)
        compressor(g, p + "attn.indexer.compressor", dim, index_dim, ratio)

    g.dense(p + "ffn.gate.weight", experts, dim)
    if index < c["num_hash_layers"]:
        rows = [torch.randperm(experts, generator=g.random)[: c["num_experts_per_tok"]] for _ in range(c["vocab_size"])]
        g.both(p + "ffn.gate.tid2eid", torch.stack(rows).to(torch.int64))
    else:
        g.both(p + "ffn.gate.bias", torch.zeros(experts))
    for name, rows, columns in (("w1", inter, dim), ("w2", dim, inter), ("w3", inter, dim)):
        g.fp8(p + f"ffn.shared_experts.{name}", rows, columns)
        for expert in range(experts):
            g.fp4(p + f"ffn.experts.{expert}.{name}", rows, columns)


def compressor(g, name, dim, width, ratio):
    rows = width * (2 if ratio == 4 else 1)  # ratio 4 overlaps: one half serves the next group
    g.dense(name + ".wkv.weight", rows, dim)
    g.dense(name + ".wgate.weight", rows, dim)
    g.both(name + ".ape", g.normal(ratio, rows, std=0.02))
    g.vector(name + ".norm.weight", width)


def bytes_per_token(tensors, c):
    """What decoding one token must read of these weights: all but the embedding, the tables and the idle experts."""
    total = 0
    for name, tensor in tensors.items():
        if name == "embed.weight" or name.endswith("tid2eid"):
            continue
        share = c["num_experts_per_tok"] / c["n_routed_experts"] if ".experts." in name else 1
        total += int(tensor.nbytes * share)
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--native")
    parser.add_argument("--bf16")
    parser.add_argument("--preset", default="large", choices=sorted(PRESETS))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    out = {form: path for form, path in (("native", args.native), ("bf16", args.bf16)) if path}
    if not out:
        parser.error("name --native DIR, --bf16 DIR or both")

    config = {**COMMON, **PRESETS[args.preset]}
    generator = Generator(args.seed)
    layers = config["num_hidden_layers"]
    sizes = {form: dict(file=0, read=0) for form in out}
    where = {form: {} for form in out}
    for form, path in out.items():
        os.makedirs(path, exist_ok=True)
    for shard in range(layers + 1):  # one file a layer keeps the memory of this script small
        if shard == 0:
            ends(generator, config)
        else:
            layer(generator, config, shard - 1)
        file = f"model-{shard + 1:05}-of-{layers + 1:05}.safetensors"
        for form, tensors in generator.take().items():
            if form not in out:
                continue
            save_file(tensors, os.path.join(out[form], file), metadata={"format": "pt"})
            where[form].update({name: file for name in tensors})
            sizes[form]["file"] += sum(t.nbytes for t in tensors.values())
            sizes[form]["read"] += bytes_per_token(tensors, config)

    for form, path in out.items():
        form_config = dict(config)
        if form == "native":
            form_config.update(expert_dtype="fp4", quantization_config=QUANTIZATION)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump(form_config, file, indent=1)
        with open(os.path.join(path, "model.safetensors.index.json"), "w") as file:
            json.dump(dict(metadata=dict(total_size=sizes[form]["file"]), weight_map=where[form]), file)
        print(json.dumps(dict(out=path, format=form, file_bytes=sizes[form]["file"],
                              bytes_read_per_token=sizes[form]["read"])))


if __name__ == "__main__":
    main()

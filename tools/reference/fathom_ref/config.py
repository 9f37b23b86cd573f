"""Reads a Hugging Face style config.json of either family into one flat record."""
import json
import os
from dataclasses import dataclass, field


@dataclass
class Config:
    arch: str                       # "v4" or "v41"
    vocab: int
    dim: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    window: int
    ratios: list                    # per layer: 0 none, 4/128 (V4), 1/2 (V4.1)
    moe_inter: int
    experts: int
    topk_experts: int
    route_scale: float
    swiglu_limit: float
    norm_eps: float
    hc: int
    hc_iters: int
    hc_eps: float
    rope_theta: float
    compress_theta: float
    yarn_factor: float
    yarn_orig: int
    yarn_fast: float
    yarn_slow: float
    index_heads: int
    index_dim: int
    index_topk: int
    weight_block: int               # 128 (V4) or 32 (V4.1)
    hash_layers: int = 0            # V4: layers whose experts come from a token-id table
    kv_sources: list = field(default_factory=list)       # V4.1
    index_sources: list = field(default_factory=list)
    cand_source: int = -1
    cand_blocks: int = 0
    cand_block_size: int = 0
    engram_layers: list = field(default_factory=list)
    engram_rows: list = field(default_factory=list)
    engram_ngram: int = 1
    engram_vocab: int = 0
    engram_heads: int = 0
    engram_dim: int = 0
    engram_pad: int = 2
    engram_compressed_vocab: int = 0
    kv_fp4: bool = True             # V4.1 compressed rows: FP4 records, or FP8 records like the window

    @property
    def shifted_pre(self):          # V4.1 uses the collapse weights one sub-layer later
        return self.arch == "v41"

    @property
    def q_head_norm(self):          # V4 rescales every query head to unit RMS
        return self.arch == "v4"

    @property
    def quant_wo_a(self):           # V4.1 feeds the grouped output projection with FP8 activations
        return self.arch == "v41"

    @property
    def act_block(self):            # activation FP8 group along K in front of a quantised GEMM
        return self.weight_block


def load_config(path):
    with open(os.path.join(path, "config.json") if os.path.isdir(path) else path) as f:
        raw = json.load(f)
    v41 = raw["model_type"] == "deepseek_v41"
    t = {**raw, **raw["text_config"]} if "text_config" in raw else raw
    rope = t.get("rope_scaling") or {}
    n = t["num_hidden_layers"]
    c = Config(
        arch="v41" if v41 else "v4", vocab=t["vocab_size"], dim=t["hidden_size"], layers=n,
        heads=t["num_attention_heads"], head_dim=t["head_dim"], rope_dim=t["qk_rope_head_dim"],
        q_rank=t["q_lora_rank"], o_rank=t["o_lora_rank"], o_groups=t["o_groups"],
        window=t["sliding_window"], ratios=list(t["compress_ratios"])[:n],
        moe_inter=t["moe_intermediate_size"], experts=t["n_routed_experts"],
        topk_experts=t["num_experts_per_tok"], route_scale=t["routed_scaling_factor"],
        swiglu_limit=t.get("swiglu_limit", 0.0), norm_eps=t["rms_norm_eps"],
        hc=t["hc_mult"], hc_iters=t["hc_sinkhorn_iters"], hc_eps=t["hc_eps"],
        rope_theta=t["rope_theta"], compress_theta=t["compress_rope_theta"],
        yarn_factor=rope.get("factor", 1.0), yarn_orig=rope.get("original_max_position_embeddings", 0),
        yarn_fast=rope.get("beta_fast", 32), yarn_slow=rope.get("beta_slow", 1),
        index_heads=t["index_n_heads"], index_dim=t["index_head_dim"], index_topk=t["index_topk"],
        weight_block=raw.get("quantization_config", {}).get("weight_block_size", [32 if v41 else 128])[0],
    )
    if v41:
        assert t.get("hc_shifted", True), "unshifted V4.1 checkpoints are not covered"
        assert t.get("index_k_source_layer_ids", t["kv_source_layer_ids"]) == t["kv_source_layer_ids"]
        c.kv_fp4 = t.get("use_fp4_sparse_kv", True)
        c.kv_sources, c.index_sources = t["kv_source_layer_ids"], t["index_source_layer_ids"]
        c.cand_source, c.cand_blocks = t["candidate_source_layer_id"], t["candidate_topk_blocks"]
        c.cand_block_size = t["candidate_block_size"]
        c.engram_layers, c.engram_rows = t["engram_layer_ids"], t["engram_num_embeddings"]
        c.engram_ngram, c.engram_vocab = t["engram_max_ngram_size"], t["engram_vocab_size"]
        c.engram_heads, c.engram_dim = t["engram_n_heads"], t["engram_head_dim"]
        c.engram_pad, c.engram_compressed_vocab = t["engram_pad_token_id"], t["engram_compressed_vocab_size"]
    else:
        c.hash_layers = t.get("num_hash_layers", 0)
    return c

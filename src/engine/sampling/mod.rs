//! Logits become a token, deterministically given a seed.

//! Checkpoints: configuration, safetensors, mapping.

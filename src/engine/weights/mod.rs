//! Checkpoints: configuration, safetensors, mapping.

use std::ops::Deref;
use std::sync::Arc;

/// placeholder until the loader is merged
#[derive(Clone, Debug)]
pub struct Bytes(Arc<[u8]>);

impl Bytes {
    /// Owned bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

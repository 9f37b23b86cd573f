//! What the fuzz targets share: the checks, structured mutations, and where the repository's data is.

pub mod data;
pub mod mutate;
pub mod requests;
pub mod streams;
pub mod texts;

/// A number that depends on every byte: what is done to some inputs only is always done to the same ones.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

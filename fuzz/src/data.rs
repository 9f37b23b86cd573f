//! Where the repository's data is.

use std::io::Read;
use std::path::{Path, PathBuf};

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The content of a gzip-compressed file of the repository.
pub fn unpack(path: &str) -> Vec<u8> {
    let path = repository(path);
    let fault = |error: std::io::Error| -> ! { panic!("{}: {error}", path.display()) };
    let file = std::fs::File::open(&path).unwrap_or_else(|error| fault(error));
    let mut bytes = Vec::new();
    match flate2::read::GzDecoder::new(file).read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) => fault(error),
    }
}

//! One safetensors file: eight bytes with the length of a header, the header as JSON, then the values.
//!
//! A file is read as if an adversary wrote it. Nothing is allocated in proportion to a number that the file
//! claims, every range is compared with the file, and ranges must cover the values without gap or overlap.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};
use safetensors::tensor::TensorInfo;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};

use super::bytes::{Bytes, Dtype, Tensor};
use crate::engine::error::{Code, Error};

/// Longest header that is read, as in the format's own library.
const MAX_HEADER: u64 = 100_000_000;
/// Deepest shape; the largest in use is 2.
const MAX_RANK: usize = 8;

/// A mapped safetensors file.
#[derive(Clone, Debug)]
pub struct Shard {
    path: PathBuf,
    header: Bytes,
    values: Bytes,
    places: HashMap<String, Place>,
}

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Counted from the end of the header; as long as type and shape say.
    pub(super) range: Range<usize>,
}

impl Shard {
    /// Maps a file and checks its header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_bytes(map(path)?, path)
    }

    /// Checks a file that is in memory; `path` is for messages.
    pub fn from_bytes(bytes: Bytes, path: &Path) -> Result<Self, Error> {
        let (header, values) = split(&bytes).map_err(|message| bad(path, message))?;
        let places = places(&header, values.len()).map_err(|message| bad(path, message))?;
        Ok(Self {
            path: path.to_path_buf(),
            header,
            values,
            places,
        })
    }

    /// The file, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A view of a tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let found = self.places.get(name).and_then(|place| {
            Some(Tensor {
                name: name.to_string(),
                dtype: place.dtype,
                shape: place.shape.clone(),
                bytes: self.values.slice(place.range.clone())?,
            })
        });
        found.ok_or_else(|| {
            let message = format!("{}: no tensor {name:?}", self.path.display());
            Error::new(Code::BadFormat, name, message)
        })
    }

    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    pub(super) fn into_parts(self) -> (PathBuf, Bytes, HashMap<String, Place>) {
        (self.path, self.values, self.places)
    }
}

fn bad(path: &Path, message: impl fmt::Display) -> Error {
    let file = path.display().to_string();
    let message = format!("{file}: {message}");
    Error::new(Code::BadFormat, file, message)
}

/// Maps a regular file for reading.
fn map(path: &Path) -> Result<Bytes, Error> {
    let file = path.display().to_string();
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::BadFormat,
            ErrorKind::OutOfMemory => Code::OutOfHostMemory,
            _ => Code::Io,
        };
        let message = match code {
            Code::BadFormat => format!("{file}: the file is missing"),
            _ => format!("{file}: {error}"),
        };
        Error::new(code, file.as_str(), message)
    };
    // Opening a pipe would wait for a writer.
    let meta = std::fs::metadata(path).map_err(failed)?;
    if !meta.is_file() {
        return Err(bad(path, "not a regular file"));
    }
    let opened = File::open(path).map_err(failed)?;
    // Some systems refuse to map nothing.
    if meta.len() == 0 {
        return Ok(Bytes::from_vec(Vec::new()));
    }
    map_read_only(&opened).map(Bytes::from_map).map_err(failed)
}

fn map_read_only(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is private and read-only, so this process never writes through it, and `Mmap` owns
    // it until the last view is gone. Another process could shorten or rewrite the file; that nobody does is
    // the duty of the host, stated at `Bytes`.
    unsafe { MmapOptions::new().map_copy_read_only(file) }
}

/// Header and values.
fn split(bytes: &Bytes) -> Result<(Bytes, Bytes), String> {
    let size = bytes.len();
    let Some(prefix) = bytes.first_chunk::<8>() else {
        return Err(format!(
            "truncated: {size} bytes, a header needs 8 and more"
        ));
    };
    let length = u64::from_le_bytes(*prefix);
    let room = size as u64 - 8;
    if length > MAX_HEADER {
        return Err(format!(
            "header of {length} bytes, at most {MAX_HEADER} are read"
        ));
    }
    if length > room {
        return Err(format!(
            "truncated: header of {length} bytes, the file has room for {room}"
        ));
    }
    let end = 8 + length as usize;
    match (bytes.slice(8..end), bytes.slice(end..size)) {
        (Some(header), Some(values)) => Ok((header, values)),
        _ => Err("header outside the file".into()),
    }
}

/// Reads the header and proves that every tensor lies inside the `size` bytes of values.
fn places(header: &[u8], size: usize) -> Result<HashMap<String, Place>, String> {
    let mut json = serde_json::Deserializer::from_slice(header);
    let entries = json
        .deserialize_map(Entries)
        .map_err(|error| format!("invalid header: {error}"))?;
    json.end()
        .map_err(|error| format!("invalid header: {error}"))?;

    let mut found = HashMap::new();
    let mut order = Vec::with_capacity(entries.len());
    for (name, info) in entries {
        let place = place(&info, size).map_err(|message| format!("tensor {name:?}: {message}"))?;
        order.push((place.range.start, place.range.end, name.clone()));
        if found.insert(name.clone(), place).is_some() {
            return Err(format!("tensor {name:?} stands twice in the header"));
        }
    }
    order.sort_unstable();
    let mut covered = 0;
    let mut before = "";
    for (start, end, name) in &order {
        if *start < covered {
            return Err(format!(
                "tensor {name:?} starts at byte {start} and overlaps {before:?}, which ends at {covered}"
            ));
        }
        if *start > covered {
            return Err(format!(
                "bytes {covered} to {start} before tensor {name:?} belong to none"
            ));
        }
        (covered, before) = (*end, name.as_str());
    }
    if covered != size {
        return Err(format!(
            "{size} bytes of values, the header describes {covered}"
        ));
    }
    Ok(found)
}

fn place(info: &TensorInfo, size: usize) -> Result<Place, String> {
    let dtype = match info.dtype {
        safetensors::Dtype::F8_E4M3 => Dtype::F8E4M3,
        safetensors::Dtype::F8_E8M0 => Dtype::F8E8M0,
        safetensors::Dtype::I8 => Dtype::I8,
        safetensors::Dtype::U8 => Dtype::U8,
        safetensors::Dtype::BF16 => Dtype::Bf16,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::F32 => Dtype::F32,
        safetensors::Dtype::I32 => Dtype::I32,
        safetensors::Dtype::I64 => Dtype::I64,
        other => return Err(format!("dtype {other} is not supported")),
    };
    let shape = &info.shape;
    if shape.len() > MAX_RANK {
        return Err(format!(
            "{} dimensions, at most {MAX_RANK} are supported",
            shape.len()
        ));
    }
    let (start, end) = info.data_offsets;
    if start > end || end > size {
        return Err(format!(
            "bytes {start} to {end} are not inside the {size} bytes of values, the file may be truncated"
        ));
    }
    let bytes = shape
        .iter()
        .try_fold(dtype.size(), |bytes, &side| bytes.checked_mul(side));
    if bytes != Some(end - start) {
        let found = end - start;
        return Err(format!(
            "{dtype} {shape:?} does not fill bytes {start} to {end}, which are {found}"
        ));
    }
    Ok(Place {
        dtype,
        shape: shape.clone(),
        range: start..end,
    })
}

/// Reads the header's object key by key, so that a name that stands twice is seen.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = map
                .next_value::<TensorInfo>()
                .map_err(|error| A::Error::custom(format_args!("tensor {name:?}: {error}")))?;
            entries.push((name, info));
        }
        Ok(entries)
    }
}

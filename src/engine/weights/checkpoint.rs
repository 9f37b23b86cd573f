//! A directory of shards as one set of tensors.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use sha2::{Digest as _, Sha256};

use super::bytes::{Bytes, Dtype, Tensor, i64_at};
use super::expected::{
    Expected, ExpertFormat, Part, WeightBytes, expected, is_beside_the_backbone,
};
use super::shard::{Place, Shard};
use crate::engine::error::{Code, Error};
use crate::engine::model::config::{ModelConfig, read_small};

/// Names the shard of every tensor.
const INDEX: &str = "model.safetensors.index.json";
/// The only shard of a model without an index.
const SINGLE: &str = "model.safetensors";
/// Largest index that is read; the published ones have 8 MB.
const MAX_INDEX: u64 = 256 << 20;
/// Largest `config.json` that goes into the digest.
const MAX_CONFIG: u64 = 16 << 20;
/// Bytes touched between two looks at the clock: a slow disk reads them in less than a tenth of a second.
const CHUNK: usize = 4 << 20;
/// At least this long between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Smallest page.
const PAGE: usize = 4096;

/// A model's tensors, proven to be those of its configuration.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    files: Vec<ShardFile>,
    tensors: HashMap<String, Located>,
    experts: ExpertFormat,
    experts_of_layer: usize,
    digest: String,
}

#[derive(Clone, Debug)]
struct ShardFile {
    path: PathBuf,
    values: Bytes,
}

#[derive(Clone, Debug)]
struct Located {
    file: usize,
    place: Place,
    /// `None` beside the backbone.
    part: Option<Part>,
}

impl Checkpoint {
    /// Maps the shards, reads their headers, and compares names, shapes and types with the configuration.
    /// No value is read.
    pub fn open(dir: &Path, config: &ModelConfig) -> Result<Self, Error> {
        let mut digest = Sha256::new();
        let json = read_small(dir, &dir.join("config.json"), MAX_CONFIG)?;
        hash_part(&mut digest, &json);

        let index = Index::read(dir)?;
        let mut files = Vec::new();
        let mut tensors = HashMap::new();
        for name in index.files() {
            let shard = Shard::open(&dir.join(name))?;
            hash_part(&mut digest, name.as_bytes());
            hash_part(&mut digest, shard.header());
            index.check(name, &shard)?;
            let (path, values, places) = shard.into_parts();
            collect(places, files.len(), &path, &mut tensors)?;
            files.push(ShardFile { path, values });
        }

        let mut checkpoint = Self {
            files,
            experts: expert_format(&tensors),
            tensors,
            experts_of_layer: config.experts,
            digest: hex(&digest.finalize()),
        };
        checkpoint.compare(&expected(config, checkpoint.experts), &index)?;
        checkpoint.advise();
        Ok(checkpoint)
    }

    /// Whether there is a tensor of this name, in the backbone or beside it.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A view of a tensor, of the backbone or beside it.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let view = self
            .tensors
            .get(name)
            .and_then(|found| self.view(name, found));
        view.ok_or_else(|| {
            let message = format!("tensor {name:?} is not in the checkpoint");
            Error::new(Code::BadFormat, name, message)
        })
    }

    /// Names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Bytes of all tensors, those beside the backbone included.
    pub fn total_bytes(&self) -> u64 {
        let ranges = self.tensors.values().map(|found| &found.place.range);
        ranges.map(|range| range.len() as u64).sum()
    }

    /// Bytes of the backbone by part, as stored.
    pub fn weight_bytes(&self) -> WeightBytes {
        let mut sum = WeightBytes::default();
        for found in self.tensors.values() {
            if let Some(part) = found.part {
                sum.add(part, found.place.range.len() as u64);
            }
        }
        sum
    }

    /// How routed experts are stored.
    pub fn expert_format(&self) -> ExpertFormat {
        self.experts
    }

    /// SHA-256 of the configuration and of all headers, in hexadecimal: names the model without reading it.
    pub fn digest(&self) -> String {
        self.digest.clone()
    }

    /// Checks values that would break arithmetic or addressing (scales, tables of experts), and with
    /// `prefault` touches every page of the backbone, in the order of the files; n-gram tables stay
    /// untouched. `progress` gets a fraction and a phase at once and then at most ten times a second;
    /// `false` aborts with [`Code::Cancelled`]. Blocks as long as the disk needs.
    pub fn load(
        &self,
        progress: &mut dyn FnMut(f32, &str) -> bool,
        prefault: bool,
    ) -> Result<(), Error> {
        let mut todo: Vec<(&str, &Located)> = Vec::new();
        for (name, found) in &self.tensors {
            let table = matches!(found.part, None | Some(Part::Engram));
            if !table && (prefault || needs_check(name, found.place.dtype)) {
                todo.push((name, found));
            }
        }
        todo.sort_unstable_by_key(|(_, found)| (found.file, found.place.range.start));
        let sizes = todo.iter().map(|(_, found)| found.place.range.len());
        let mut meter = Meter {
            progress,
            total: sizes.sum(),
            done: 0,
            last: None,
        };
        for (name, found) in todo {
            let Some(tensor) = self.view(name, found) else {
                continue;
            };
            meter.report()?;
            if prefault {
                touch(&tensor.bytes, &mut meter)?;
            } else {
                meter.done += tensor.bytes.len();
            }
            if needs_check(name, tensor.dtype) {
                self.check_values(&tensor).map_err(|fault| {
                    let file = self.files[found.file].path.display();
                    let message = format!("{file}: tensor {name:?}: {fault}");
                    Error::new(Code::BadFormat, name, message)
                })?;
            }
        }
        Ok(())
    }

    fn view(&self, name: &str, found: &Located) -> Option<Tensor> {
        let values = &self.files[found.file].values;
        Some(Tensor {
            name: name.to_string(),
            dtype: found.place.dtype,
            shape: found.place.shape.clone(),
            bytes: values.slice(found.place.range.clone())?,
        })
    }

    /// Marks the tensors of the backbone; an error for the first that is missing, other or too much.
    fn compare(&mut self, expected: &[Expected], index: &Index) -> Result<(), Error> {
        for wanted in expected {
            let name = &wanted.name;
            let Some(found) = self.tensors.get_mut(name) else {
                let (at, want) = (index.path.display(), describe(wanted));
                let message = format!("{at}: tensor {name:?} is missing, expected {want}");
                return Err(Error::new(Code::BadFormat, name.as_str(), message));
            };
            let place = &found.place;
            if place.shape != wanted.shape || !wanted.dtypes.contains(&place.dtype) {
                let file = self.files[found.file].path.display();
                let want = describe(wanted);
                let message = format!(
                    "{file}: tensor {name:?}: expected {want}, found {} {:?}",
                    place.dtype, place.shape
                );
                return Err(Error::new(Code::BadFormat, name.as_str(), message));
            }
            found.part = Some(wanted.part);
        }
        let surplus = self
            .tensors
            .iter()
            .filter(|(name, found)| found.part.is_none() && !is_beside_the_backbone(name))
            .min_by_key(|(name, _)| name.as_str());
        let Some((name, found)) = surplus else {
            return Ok(());
        };
        let file = self.files[found.file].path.display();
        let place = &found.place;
        let mut message = format!(
            "{file}: tensor {name:?}, {} {:?}, belongs to no part of the configured model",
            place.dtype, place.shape
        );
        if name.contains("hc_") && name.ends_with("_norm.weight") {
            message.push_str("; norms of hyper-connections must be folded into the mixes");
        }
        Err(Error::new(Code::BadFormat, name.as_str(), message))
    }

    /// Rows of n-gram tables are read one by one, wherever the hash falls: no reading ahead.
    fn advise(&self) {
        for (name, found) in &self.tensors {
            if found.part == Some(Part::Engram)
                && let Some(tensor) = self.view(name, found)
            {
                tensor.bytes.expect_random_reads();
            }
        }
    }

    /// What is wrong with the values, if anything.
    fn check_values(&self, tensor: &Tensor) -> Result<(), String> {
        let bytes = &tensor.bytes;
        match tensor.dtype {
            // `contains` is several times faster than `position`, and there are gigabytes of scales.
            Dtype::F8E8M0 if bytes.contains(&0xff) => {
                let at = bytes.iter().position(|&byte| byte == 0xff).unwrap_or(0);
                Err(format!("scale {at} is NaN, byte 0xff"))
            }
            Dtype::F32 => {
                // Only a sink may be infinite: it then has no share.
                let scale = tensor.name.ends_with(".scale");
                let mut values = bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                match values.position(|value| value.is_nan() || scale && value.is_infinite()) {
                    Some(at) => Err(format!("value {at} is not a finite number")),
                    None => Ok(()),
                }
            }
            Dtype::I64 => {
                let experts = self.experts_of_layer as i64;
                let mut ids = bytes.chunks_exact(8).map(i64_at).enumerate();
                match ids.find(|&(_, id)| id < 0 || id >= experts) {
                    Some((at, id)) => Err(format!(
                        "entry {at} is expert {id}, expected 0 to {}",
                        experts - 1
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

fn needs_check(name: &str, dtype: Dtype) -> bool {
    match dtype {
        Dtype::F8E8M0 => name.ends_with(".scale"),
        Dtype::F32 | Dtype::I64 => true,
        _ => false,
    }
}

fn describe(wanted: &Expected) -> String {
    let names: Vec<&str> = wanted.dtypes.iter().map(|dtype| dtype.name()).collect();
    format!("{} {:?}", names.join(" or "), wanted.shape)
}

/// The stored type decides, not the configuration: the first expert speaks for all.
fn expert_format(tensors: &HashMap<String, Located>) -> ExpertFormat {
    let first = tensors.get("layers.0.ffn.experts.0.w1.weight");
    match first.map(|found| found.place.dtype) {
        Some(Dtype::F8E4M3) => ExpertFormat::Fp8,
        _ => ExpertFormat::Fp4,
    }
}

/// Adds a shard's tensors under their names without `model.`.
fn collect(
    places: HashMap<String, Place>,
    file: usize,
    path: &Path,
    tensors: &mut HashMap<String, Located>,
) -> Result<(), Error> {
    for (stored, place) in places {
        let name = stored.strip_prefix("model.").unwrap_or(&stored).to_string();
        let found = Located {
            file,
            place,
            part: None,
        };
        if tensors.insert(name.clone(), found).is_some() {
            let file = path.display();
            let message = format!("{file}: tensor {stored:?} stands in the checkpoint twice");
            return Err(Error::new(Code::BadFormat, name, message));
        }
    }
    Ok(())
}

/// Counts bytes and reports them.
struct Meter<'a> {
    progress: &'a mut dyn FnMut(f32, &str) -> bool,
    total: usize,
    done: usize,
    last: Option<Instant>,
}

impl Meter<'_> {
    fn report(&mut self) -> Result<(), Error> {
        if self.last.is_some_and(|last| last.elapsed() < REPORT_EVERY) {
            return Ok(());
        }
        self.last = Some(Instant::now());
        let fraction = self.done as f64 / self.total.max(1) as f64;
        if (self.progress)(fraction as f32, "weights") {
            return Ok(());
        }
        let message = "loading was aborted by the progress callback";
        Err(Error::new(Code::Cancelled, "progress", message))
    }
}

/// Reads one byte of every page.
fn touch(bytes: &Bytes, meter: &mut Meter<'_>) -> Result<(), Error> {
    bytes.read_ahead();
    for chunk in bytes.chunks(CHUNK) {
        let mut sum = 0u8;
        for page in chunk.chunks(PAGE) {
            sum = sum.wrapping_add(page[0]);
        }
        // The sum is of no use; without this the reads would be removed.
        std::hint::black_box(sum);
        meter.done += chunk.len();
        meter.report()?;
    }
    Ok(())
}

/// With its length, so that parts cannot run into each other.
fn hash_part(digest: &mut Sha256, part: &[u8]) {
    digest.update((part.len() as u64).to_le_bytes());
    digest.update(part);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Which tensor is in which file.
struct Index {
    path: PathBuf,
    /// `None`: one file without an index.
    map: Option<HashMap<String, String>>,
}

impl Index {
    fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(INDEX);
        if !path.exists() {
            let path = dir.join(SINGLE);
            if path.exists() {
                return Ok(Self { path, map: None });
            }
            let dir = dir.display();
            let message = format!("{dir}: neither {INDEX:?} nor {SINGLE:?} is there");
            return Err(Error::new(Code::BadFormat, INDEX, message));
        }
        let json = read_small(dir, &path, MAX_INDEX)?;
        let bad = |message: String| {
            let file = path.display().to_string();
            Error::new(Code::BadFormat, file.as_str(), format!("{file}: {message}"))
        };
        let WeightMap(entries) = serde_json::from_slice(&json)
            .map_err(|error| bad(format!("invalid index: {error}")))?;
        let mut map = HashMap::new();
        for (tensor, file) in entries {
            if !stays_inside(&file) {
                let message = format!("tensor {tensor:?}: file {file:?} is not in the directory");
                return Err(bad(message));
            }
            if map.insert(tensor.clone(), file).is_some() {
                return Err(bad(format!("tensor {tensor:?} stands twice in the index")));
            }
        }
        if map.is_empty() {
            return Err(bad("\"weight_map\" names no tensor".into()));
        }
        let map = Some(map);
        Ok(Self { path, map })
    }

    /// Each file once, in order.
    fn files(&self) -> BTreeSet<&str> {
        match &self.map {
            Some(map) => map.values().map(String::as_str).collect(),
            None => BTreeSet::from([SINGLE]),
        }
    }

    /// Whether index and file name the same tensors.
    fn check(&self, file: &str, shard: &Shard) -> Result<(), Error> {
        let Some(map) = &self.map else {
            return Ok(());
        };
        let index = self.path.display();
        let fail = |tensor: &str, message| Err(Error::new(Code::BadFormat, tensor, message));
        let unlisted = shard
            .names()
            .filter(|&name| map.get(name).is_none_or(|listed| listed != file));
        if let Some(name) = unlisted.min() {
            let at = shard.path().display();
            let message = match map.get(name) {
                None => format!("{at}: tensor {name:?} is missing from {index}"),
                Some(other) => format!("{at}: tensor {name:?} is in {other:?} by {index}"),
            };
            return fail(name, message);
        }
        let absent = map
            .iter()
            .filter(|&(name, listed)| listed == file && !shard.has(name));
        if let Some((name, _)) = absent.min() {
            let at = shard.path().display();
            let message = format!("{at}: tensor {name:?} is missing, {index} places it there");
            return fail(name, message);
        }
        Ok(())
    }
}

/// A file of the directory or of one below it; never one above or elsewhere.
fn stays_inside(file: &str) -> bool {
    let mut parts = Path::new(file).components().peekable();
    parts.peek().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && !file.contains(['\\', '\0'])
}

/// `weight_map` of an index, entry by entry: a name that stands twice must be seen.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(IndexVisitor)
    }
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"weight_map\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(map.next_value::<Entries>()?).is_some() {
                return Err(A::Error::custom("\"weight_map\" stands twice"));
            }
        }
        let Some(Entries(entries)) = found else {
            return Err(A::Error::custom("\"weight_map\" is missing"));
        };
        Ok(WeightMap(entries))
    }
}

struct Entries(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

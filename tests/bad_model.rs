//! Broken checkpoints: each fault is refused, with a sentence that says where it is.

use std::path::Path;

use fathom::engine::model::config::ModelConfig;
use fathom::engine::weights::{Bytes, Checkpoint, ExpertFormat, Shard, weight_bytes};
use fathom::engine::{Code, Error};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const V4_FIRST: &str = "model-00001-of-00002.safetensors";
const V4_SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A copy of a tiny checkpoint to be broken. Untouched files are links: they are never written.
struct Model {
    dir: TempDir,
}

impl Model {
    fn copy(name: &str) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/model")
            .join(name);
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with("golden") {
                std::os::unix::fs::symlink(entry.path(), dir.path().join(name)).unwrap();
            }
        }
        Self { dir }
    }

    fn v4() -> Self {
        Self::copy("v4-tiny")
    }

    fn v41() -> Self {
        Self::copy("v41-tiny")
    }

    fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(file)).unwrap()
    }

    /// Replaces a link, never what it points to.
    fn write(&self, file: &str, bytes: &[u8]) {
        let path = self.dir.path().join(file);
        let _ = std::fs::remove_file(&path);
        std::fs::write(path, bytes).unwrap();
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.dir.path().join(file)).unwrap();
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read(file);
        change(&mut bytes);
        self.write(file, &bytes);
    }

    fn edit_json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&self.read(file)).unwrap();
        change(&mut value);
        self.write(file, &serde_json::to_vec(&value).unwrap());
    }

    fn edit_map(&self, change: impl FnOnce(&mut Map<String, Value>)) {
        self.edit_json(INDEX, |index| {
            change(index["weight_map"].as_object_mut().unwrap())
        });
    }

    /// Rewrites a shard with another header and, maybe, other values.
    fn edit_shard(&self, file: &str, change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) {
        let bytes = self.read(file);
        let (header, values) = split(&bytes);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        let mut values = values.to_vec();
        change(header.as_object_mut().unwrap(), &mut values);
        self.write(file, &join(&serde_json::to_vec(&header).unwrap(), &values));
    }

    /// Overwrites the values of a tensor from an offset on.
    fn edit_values(&self, file: &str, tensor: &str, at: usize, new: &[u8]) {
        self.edit_shard(file, |header, values| {
            let start = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + at;
            values[start..start + new.len()].copy_from_slice(new);
        });
    }

    fn open(&self) -> Result<Checkpoint, Error> {
        let config = ModelConfig::read(self.dir.path())?;
        let checkpoint = Checkpoint::open(self.dir.path(), &config)?;
        checkpoint.load(&mut |_, _| true, false)?;
        Ok(checkpoint)
    }

    /// The checkpoint is refused as malformed, and the message has all of `parts`.
    #[track_caller]
    fn is_refused(&self, parts: &[&str]) {
        self.fails(Code::BadFormat, parts);
    }

    #[track_caller]
    fn fails(&self, code: Code, parts: &[&str]) {
        let error = self.open().expect_err("a broken checkpoint was accepted");
        assert_eq!(error.code, code, "{error}");
        for part in parts {
            assert!(error.message.contains(part), "{part:?} is not in: {error}");
        }
        assert!(!error.message.ends_with('.'), "{error}");
    }
}

fn split(file: &[u8]) -> (&[u8], &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8..].split_at(length)
}

fn join(header: &[u8], values: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [length.as_slice(), header, values].concat()
}

/// Appends a tensor of zero bytes to a shard and its index.
fn add_tensor(model: &Model, name: &str, listed: bool) {
    model.edit_shard(V4_FIRST, |header, values| {
        let start = values.len();
        values.extend([0; 8]);
        let info = json!({"dtype": "F32", "shape": [2], "data_offsets": [start, start + 8]});
        header.insert(name.into(), info);
    });
    if listed {
        model.edit_map(|map| {
            map.insert(name.into(), V4_FIRST.into());
        });
    }
}

#[test]
fn untouched_copies_are_accepted() {
    Model::v4().open().unwrap();
    Model::v41().open().unwrap();
}

#[test]
fn a_missing_directory_is_not_found() {
    let model = Model::v4();
    let missing = model.dir.path().join("nowhere");
    let error = ModelConfig::read(&missing).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(
        error.message.contains("nowhere: no such directory"),
        "{error}"
    );
    let file = model.dir.path().join("config.json");
    let error = ModelConfig::read(&file).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(
        error.message.contains("config.json: not a directory"),
        "{error}"
    );
}

#[test]
fn missing_files_are_named() {
    for (file, parts) in [
        ("config.json", ["config.json: the file is missing", ""]),
        (V4_SECOND, [V4_SECOND, "the file is missing"]),
        (
            INDEX,
            [
                "neither \"model.safetensors.index.json\"",
                "\"model.safetensors\"",
            ],
        ),
    ] {
        let model = Model::v4();
        model.remove(file);
        model.is_refused(&parts);
    }
}

#[test]
fn a_shard_that_cannot_be_read_is_a_fault_of_reading() {
    let model = Model::v4();
    // The only entry, so that nothing else is opened first.
    model.write(INDEX, br#"{"weight_map":{"a":"config.json/shard"}}"#);
    model.fails(Code::Io, &["config.json/shard: "]);
}

#[test]
fn a_directory_in_place_of_a_file_is_refused() {
    for file in ["config.json", INDEX, V4_FIRST] {
        let model = Model::v4();
        model.remove(file);
        std::fs::create_dir(model.dir.path().join(file)).unwrap();
        model.is_refused(&[file, "not a regular file"]);
    }
}

/// (keys from the top, new value; null removes), what the message says.
type Fault = (&'static [&'static str], Value, &'static str);

fn each_config_is_refused(model: fn() -> Model, faults: Vec<Fault>) {
    for (path, value, part) in faults {
        let model = model();
        model.edit_json("config.json", |root| {
            let (last, parents) = path.split_last().unwrap();
            let parent = parents.iter().fold(root, |at, key| &mut at[*key]);
            let parent = parent.as_object_mut().unwrap();
            match value {
                Value::Null => drop(parent.remove(*last)),
                value => drop(parent.insert(last.to_string(), value)),
            }
        });
        model.is_refused(&["config.json: ", path.last().unwrap(), part]);
    }
}

#[test]
fn v4_configurations_that_mean_another_computation_are_refused() {
    each_config_is_refused(
        Model::v4,
        vec![
            (
                &["model_type"],
                json!("llama"),
                "\"llama\" is not supported",
            ),
            (&["model_type"], Value::Null, "is missing"),
            (
                &["architectures"],
                json!(["LlamaForCausalLM"]),
                "only [\"DeepseekV4ForCausalLM\"] is",
            ),
            (&["quantization_config"], Value::Null, "is missing"),
            (
                &["quantization_config", "quant_method"],
                json!("awq"),
                "only \"fp8\" is supported",
            ),
            (
                &["quantization_config", "quant_method"],
                Value::Null,
                "is missing",
            ),
            (
                &["quantization_config", "weight_block_size"],
                json!([32, 32]),
                "only [128,128] is",
            ),
            (
                &["quantization_config", "activation_scheme"],
                json!("static"),
                "only \"dynamic\" is",
            ),
            (
                &["quantization_config", "scale_fmt"],
                json!("float"),
                "only \"ue8m0\" is supported",
            ),
            (
                &["quantization_config", "fmt"],
                json!("e5m2"),
                "only \"e4m3\" is supported",
            ),
            (&["expert_dtype"], json!("int4"), "only \"fp4\" and \"fp8\""),
            (
                &["num_key_value_heads"],
                json!(8),
                "is 8, only 1 is supported",
            ),
            (&["n_shared_experts"], json!(2), "only 1 is supported"),
            (&["hidden_act"], json!("gelu"), "only \"silu\" is supported"),
            (&["attention_bias"], json!(true), "only false is supported"),
            (
                &["tie_word_embeddings"],
                json!(true),
                "only false is supported",
            ),
            (&["scoring_func"], json!("softmax"), "only \"sqrtsoftplus\""),
            (&["torch_dtype"], json!("float16"), "only \"bfloat16\""),
            (
                &["rope_scaling", "type"],
                json!("linear"),
                "only \"yarn\" is supported",
            ),
            (
                &["rope_scaling", "factor"],
                json!(0),
                "expected a number above 0",
            ),
            (
                &["rope_scaling", "original_max_position_embeddings"],
                Value::Null,
                "is missing",
            ),
        ],
    );
}

#[test]
fn v4_sizes_that_do_not_fit_each_other_are_refused() {
    each_config_is_refused(
        Model::v4,
        vec![
            (&["hidden_size"], Value::Null, "is missing"),
            (&["hidden_size"], json!("128"), "expected a whole number"),
            (&["hidden_size"], json!(-128), "expected a whole number"),
            (&["hidden_size"], json!(0), "from 1 to"),
            (&["hidden_size"], json!(1u64 << 40), "from 1 to"),
            (&["hidden_size"], json!(100), "no multiple of 32"),
            (&["num_hidden_layers"], json!(7), "has 6 entries"),
            (&["num_hidden_layers"], json!(1_000_000), "from 1 to 1024"),
            (&["compress_ratios"], json!([0, 4, 128]), "has 3 entries"),
            (
                &["compress_ratios"],
                json!([0, 4, 128, 3, 128, 4]),
                "has 3 for layer 3",
            ),
            (&["compress_ratios"], json!("none"), "not a list"),
            (&["num_experts_per_tok"], json!(9), "is 9 of 8 experts"),
            (
                &["n_routed_experts"],
                json!(100_000),
                "at most 131072 in all",
            ),
            (&["o_groups"], json!(3), "does not divide"),
            (&["qk_rope_head_dim"], json!(63), "even number"),
            (&["qk_rope_head_dim"], json!(256), "up to head_dim 128"),
            (&["head_dim"], json!(96), "groups of 64"),
            (&["index_head_dim"], json!(96), "power of two"),
            (&["num_hash_layers"], json!(7), "from 0 to 6"),
            (&["rms_norm_eps"], json!(-1), "expected a number above 0"),
            (&["eos_token_id"], json!(512), "beyond vocab_size 512"),
            (&["eos_token_id"], Value::Null, "is missing"),
            (&["bos_token_id"], json!([0, 1]), "expected a whole number"),
        ],
    );
}

#[test]
fn v41_sources_and_tables_that_do_not_fit_are_refused() {
    let ratios = json!([0, 0, 2, 2, 2, 1, 1, 1, 1, 1]);
    let early = json!([0, 2, 2, 2, 2, 2, 1, 1, 1, 1]);
    each_config_is_refused(
        Model::v41,
        vec![
            (
                &["text_config", "kv_source_layer_ids"],
                json!([2, 6, 4]),
                "expected ascending layers",
            ),
            (
                &["text_config", "kv_source_layer_ids"],
                json!([2, 3, 6]),
                "layer 3 of",
            ),
            (
                &["text_config", "kv_source_layer_ids"],
                json!([2, 4, 10]),
                "from 0 to 9",
            ),
            (
                &["text_config", "kv_source_layer_ids"],
                Value::Null,
                "is missing",
            ),
            (
                &["text_config", "compress_ratios"],
                ratios,
                "has 1 for layer 5, but its source, layer 4",
            ),
            (
                &["text_config", "compress_ratios"],
                early,
                "has 2 for layer 1, but no source",
            ),
            (
                &["text_config", "index_source_layer_ids"],
                json!([1, 2, 4, 6, 8]),
                "layer 1 of",
            ),
            (
                &["text_config", "candidate_source_layer_id"],
                json!(7),
                "is missing from",
            ),
            (
                &["text_config", "candidate_source_layer_id"],
                json!(4),
                "layer 6 of",
            ),
            (
                &["text_config", "index_k_source_layer_ids"],
                json!([2]),
                "only [2,4,6] is supported",
            ),
            (
                &["text_config", "hc_shifted"],
                json!(false),
                "only true is supported",
            ),
            (
                &["text_config", "use_fp4_sparse_kv"],
                json!(1),
                "expected true or false",
            ),
            (
                &["text_config", "engram_layer_ids"],
                json!([4, 1]),
                "expected ascending layers",
            ),
            (
                &["text_config", "engram_num_embeddings"],
                json!([630]),
                "1 entries for 2 layers",
            ),
            (
                &["text_config", "engram_num_embeddings"],
                json!([629, 834]),
                "629 rows for layer 1",
            ),
            (
                &["text_config", "engram_max_ngram_size"],
                json!(1),
                "at least 2",
            ),
            (
                &["text_config", "engram_n_heads"],
                json!(1000),
                "at most 4096 buckets",
            ),
            (
                &["text_config", "engram_pad_token_id"],
                json!(512),
                "beyond vocab_size",
            ),
            (
                &["text_config", "hidden_act"],
                json!("relu"),
                "only \"silu\" is supported",
            ),
            (
                &["quantization_config", "expert_dtype"],
                json!("fp8"),
                "only \"fp4\" is supported",
            ),
            (
                &["quantization_config", "weight_block_size"],
                json!([128, 128]),
                "only [32,32] is",
            ),
        ],
    );
}

#[test]
fn a_configuration_that_is_not_json_is_refused() {
    let model = Model::v4();
    model.write("config.json", b"{\"model_type\":");
    model.is_refused(&["config.json: not JSON", "line 1"]);
    model.write("config.json", b"[]");
    model.is_refused(&["config.json: not a JSON object"]);
    model.write("config.json", &vec![b'['; 100_000]);
    model.is_refused(&["config.json: not JSON", "recursion"]);
}

#[test]
fn newer_exports_nest_the_rotation() {
    let model = Model::v4();
    let before = ModelConfig::read(model.dir.path()).unwrap();
    model.edit_json("config.json", |root| {
        let root = root.as_object_mut().unwrap();
        let mut compress = root.remove("rope_scaling").unwrap();
        compress["rope_theta"] = root.remove("compress_rope_theta").unwrap();
        let kind = compress.as_object_mut().unwrap().remove("type").unwrap();
        compress["rope_type"] = kind;
        let main =
            json!({"rope_type": "default", "rope_theta": root.remove("rope_theta").unwrap()});
        root.insert(
            "rope_parameters".into(),
            json!({"main": main, "compress": compress}),
        );
    });
    assert_eq!(ModelConfig::read(model.dir.path()).unwrap(), before);
    assert_eq!(before.yarn.unwrap().factor, 16.0);
}

#[test]
fn a_missing_tensor_is_named_with_what_was_expected() {
    let model = Model::v4();
    let name = "layers.2.attn.wo_a.scale";
    model.edit_shard(V4_FIRST, |header, _| {
        let info = header.remove(name).unwrap();
        header.insert("mtp.9.wo_a.scale".into(), info);
    });
    model.edit_map(|map| {
        map.remove(name);
        map.insert("mtp.9.wo_a.scale".into(), V4_FIRST.into());
    });
    model.is_refused(&[INDEX, name, "is missing, expected F8_E8M0 or F32 [2, 2]"]);
}

#[test]
fn a_surplus_tensor_is_refused_but_not_beside_the_backbone() {
    let model = Model::v4();
    add_tensor(&model, "layers.0.attn.extra", true);
    model.is_refused(&[
        V4_FIRST,
        "\"layers.0.attn.extra\", F32 [2], belongs to no part",
    ]);

    let model = Model::v4();
    add_tensor(&model, "layers.0.hc_attn_norm.weight", true);
    model.is_refused(&["layers.0.hc_attn_norm.weight", "must be folded"]);

    for name in [
        "mtp.0.enorm.weight",
        "vision.norm.weight",
        "aligner.w1.bias",
        "image_newline",
    ] {
        let model = Model::v4();
        add_tensor(&model, name, true);
        assert!(model.open().unwrap().has(name));
    }
}

#[test]
fn another_shape_is_refused() {
    let model = Model::v4();
    model.edit_shard(V4_SECOND, |header, _| {
        header["head.weight"]["shape"] = json!([128, 512])
    });
    model.is_refused(&[
        V4_SECOND,
        "\"head.weight\": expected BF16 [512, 128], found BF16 [128, 512]",
    ]);
}

#[test]
fn another_type_is_refused() {
    let model = Model::v4();
    model.edit_shard(V4_FIRST, |header, _| {
        header["embed.weight"]["dtype"] = json!("F16")
    });
    model.is_refused(&["\"embed.weight\": expected BF16 [512, 128], found F16 [512, 128]"]);

    // One expert in another format than the first.
    let model = Model::v4();
    let name = "layers.1.ffn.experts.2.w3.weight";
    model.edit_shard(V4_FIRST, |header, _| header[name]["dtype"] = json!("U8"));
    model.is_refused(&[name, "expected I8 [128, 64], found U8 [128, 64]"]);
}

#[test]
fn types_that_no_part_uses_are_refused() {
    for (dtype, part) in [
        ("F8_E5M2", "dtype F8_E5M2 is not supported"),
        ("Q4_K", "unknown variant"),
    ] {
        let model = Model::v4();
        model.edit_shard(V4_FIRST, |header, _| {
            header["embed.weight"]["dtype"] = json!(dtype)
        });
        model.is_refused(&[V4_FIRST, "tensor \"embed.weight\"", part]);
    }
}

#[test]
fn ranges_that_overlap_leave_the_file_or_leave_gaps_are_refused() {
    let range = |start: u64, end: u64, part: &str| {
        let model = Model::v4();
        model.edit_shard(V4_FIRST, |header, _| {
            header["layers.1.ffn.gate.tid2eid"]["data_offsets"] = json!([start, end]);
        });
        model.is_refused(&[V4_FIRST, part]);
    };
    range(0, 8192, "overlaps \"layers.");
    range(
        8191,
        16383,
        "tensor \"layers.1.ffn.gate.tid2eid\" starts at byte 8191 and overlaps",
    );
    range(
        8192,
        16383,
        "I64 [512, 2] does not fill bytes 8192 to 16383, which are 8191",
    );
    range(16384, 8192, "bytes 16384 to 8192 are not inside");
    range(0, u64::MAX, "are not inside");

    let model = Model::v4();
    model.edit_shard(V4_FIRST, |header, _| {
        drop(header.remove("layers.1.ffn.gate.tid2eid"))
    });
    model.is_refused(&[
        V4_FIRST,
        "bytes 8192 to 16384 before tensor",
        "belong to none",
    ]);

    let model = Model::v4();
    model.edit(V4_FIRST, |file| file.extend([0; 5]));
    model.is_refused(&[V4_FIRST, "bytes of values, the header describes"]);
}

#[test]
fn a_shape_whose_product_overflows_is_refused() {
    let model = Model::v4();
    let huge = 1u64 << 40;
    model.edit_shard(V4_FIRST, |header, _| {
        header["embed.weight"]["shape"] = json!([huge, huge, huge]);
    });
    model.is_refused(&["tensor \"embed.weight\"", "does not fill"]);
    model.edit_shard(V4_FIRST, |header, _| {
        header["embed.weight"]["shape"] = json!(vec![1; 9])
    });
    model.is_refused(&["tensor \"embed.weight\"", "9 dimensions"]);
}

#[test]
fn truncated_files_are_refused() {
    let whole = Model::v4().read(V4_FIRST).len();
    for (length, part) in [
        (0, "truncated: 0 bytes"),
        (7, "truncated: 7 bytes"),
        (8, "the file has room for 0"),
        (1000, "the file has room for 992"),
        (whole - 1, "the file may be truncated"),
    ] {
        let model = Model::v4();
        model.edit(V4_FIRST, |file| file.truncate(length));
        model.is_refused(&[V4_FIRST, part]);
    }
}

#[test]
fn absurd_header_lengths_are_refused_before_anything_is_allocated() {
    for length in [100_000_001, u64::MAX, u64::MAX - 7] {
        let model = Model::v4();
        model.edit(V4_FIRST, |file| {
            file[..8].copy_from_slice(&length.to_le_bytes())
        });
        model.is_refused(&[
            V4_FIRST,
            &format!("header of {length} bytes, at most 100000000"),
        ]);
    }
}

#[test]
fn headers_that_are_not_an_object_of_tensors_are_refused() {
    for (header, part) in [
        ("", "invalid header: EOF"),
        ("[]", "expected an object of tensors"),
        ("{\"a\":", "tensor \"a\": EOF"),
        (
            "{\"a\":{\"dtype\":\"F32\"}}",
            "tensor \"a\": missing field `shape`",
        ),
        (
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
            "tensor \"a\": invalid value",
        ),
        ("{} {}", "trailing characters"),
        ("{\"\\u00ff", "invalid header: EOF"),
    ] {
        let model = Model::v4();
        model.write(V4_FIRST, &join(header.as_bytes(), &[]));
        model.is_refused(&[V4_FIRST, part]);
    }
    let model = Model::v4();
    model.write(V4_FIRST, &join(b"{\"\xff\":1}", &[]));
    model.is_refused(&[V4_FIRST, "invalid header"]);
}

#[test]
fn names_that_stand_twice_are_refused() {
    // In a header; a JSON library would keep the last one silently.
    let model = Model::v4();
    let info = "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
    let header = format!("{{\"a\":{info},\"a\":{info}}}");
    model.write(V4_FIRST, &join(header.as_bytes(), &[0]));
    model.is_refused(&[V4_FIRST, "tensor \"a\" stands twice in the header"]);

    // In the index.
    let model = Model::v4();
    model.write(INDEX, b"{\"weight_map\":{\"a\":\"x\",\"a\":\"x\"}}");
    model.is_refused(&[INDEX, "tensor \"a\" stands twice in the index"]);

    // With and without a prefix.
    let model = Model::v4();
    add_tensor(&model, "model.norm.weight", true);
    model.is_refused(&["norm.weight\" stands in the checkpoint twice"]);

    // In two shards: the index can name one of them only.
    let model = Model::v4();
    add_tensor(&model, "norm.weight", false);
    model.is_refused(&[V4_FIRST, "tensor \"norm.weight\" is in", V4_SECOND]);
}

#[test]
fn an_index_that_disagrees_with_the_shards_is_refused() {
    let model = Model::v4();
    model.edit_map(|map| drop(map.insert("ghost.weight".into(), V4_SECOND.into())));
    model.is_refused(&[V4_SECOND, "tensor \"ghost.weight\" is missing", INDEX]);

    let model = Model::v4();
    model.edit_map(|map| drop(map.remove("embed.weight")));
    model.is_refused(&[V4_FIRST, "tensor \"embed.weight\" is missing from", INDEX]);

    let model = Model::v4();
    model.edit_map(|map| drop(map.insert("embed.weight".into(), V4_SECOND.into())));
    model.is_refused(&[V4_FIRST, "tensor \"embed.weight\" is in", V4_SECOND]);

    for (index, part) in [
        (json!({}), "\"weight_map\" is missing"),
        (json!([]), "expected an object with \"weight_map\""),
        (json!({"weight_map": {}}), "names no tensor"),
        (json!({"weight_map": {"a": 1}}), "invalid index"),
    ] {
        let model = Model::v4();
        model.write(INDEX, &serde_json::to_vec(&index).unwrap());
        model.is_refused(&[INDEX, part]);
    }
}

#[test]
fn shards_outside_the_directory_are_refused() {
    for file in [
        "../x.safetensors",
        "/etc/passwd",
        "a/../../x",
        "",
        ".",
        "..\\x",
        "x\0y",
    ] {
        let model = Model::v4();
        model.edit_map(|map| drop(map.insert("embed.weight".into(), file.into())));
        model.is_refused(&[INDEX, "tensor \"embed.weight\"", "is not in the directory"]);
    }
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let model = Model::v4();
    let name = "layers.0.ffn.experts.3.w2.scale";
    model.edit_values(V4_FIRST, name, 17, &[0xff]);
    model.is_refused(&[V4_FIRST, name, "scale 17 is NaN, byte 0xff"]);

    let model = Model::v4();
    let name = "layers.1.hc_ffn_fn";
    model.edit_values(V4_FIRST, name, 8, &f32::NAN.to_le_bytes());
    model.is_refused(&[V4_FIRST, name, "value 2 is not a finite number"]);

    // The same with every page touched.
    let config = ModelConfig::read(model.dir.path()).unwrap();
    let checkpoint = Checkpoint::open(model.dir.path(), &config).unwrap();
    let error = checkpoint.load(&mut |_, _| true, true).unwrap_err();
    assert_eq!(error.code, Code::BadFormat);
}

#[test]
fn infinite_f32_scales_are_refused() {
    // As in Base checkpoints: one FP8 scale of the same count, but F32.
    let model = Model::v4();
    let name = "layers.0.attn.wkv.scale";
    model.edit_shard(V4_FIRST, |header, values| {
        let old = header[name]["data_offsets"][0].as_u64().unwrap() as usize;
        values.splice(old..old + 1, f32::INFINITY.to_le_bytes());
        for info in header.values_mut() {
            let Some(offsets) = info.get_mut("data_offsets") else {
                continue;
            };
            for side in offsets.as_array_mut().unwrap() {
                let at = side.as_u64().unwrap();
                if at > old as u64 {
                    *side = json!(at + 3);
                }
            }
        }
        header[name]["dtype"] = json!("F32");
    });
    model.is_refused(&[V4_FIRST, name, "value 0 is not a finite number"]);
}

#[test]
fn tables_of_experts_that_do_not_exist_are_refused() {
    for id in [8i64, -1] {
        let model = Model::v4();
        let name = "layers.1.ffn.gate.tid2eid";
        model.edit_values(V4_FIRST, name, 80, &id.to_le_bytes());
        model.is_refused(&[
            V4_FIRST,
            name,
            &format!("entry 10 is expert {id}, expected 0 to 7"),
        ]);
    }
}

/// A small valid file to mutate.
fn small_file() -> Vec<u8> {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F8_E8M0", "shape": [5], "data_offsets": [24, 29]},
        "c": {"dtype": "I64", "shape": [], "data_offsets": [29, 37]},
    });
    join(&serde_json::to_vec(&header).unwrap(), &[7; 37])
}

/// Whatever is accepted keeps its promise: as many bytes as type and shape say.
fn open_bytes(file: Vec<u8>) -> bool {
    let Ok(shard) = Shard::from_bytes(Bytes::from_vec(file), Path::new("mutated")) else {
        return false;
    };
    for name in shard.names() {
        let tensor = shard.tensor(name).unwrap();
        let values: usize = tensor.shape.iter().product();
        assert_eq!(values * tensor.dtype.size(), tensor.bytes.len());
    }
    true
}

#[test]
fn the_file_to_mutate_is_valid() {
    assert!(open_bytes(small_file()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(file in prop::collection::vec(any::<u8>(), 0..300)) {
        open_bytes(file);
    }

    #[test]
    fn random_headers_never_panic(header in "[\\[\\]{}:,\"a-c0-9dtypeshapF_]{0,80}") {
        open_bytes(join(header.as_bytes(), &[0; 16]));
    }

    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = small_file();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        open_bytes(file);
    }

    #[test]
    fn other_numbers_in_a_header_never_panic(
        shape in prop::collection::vec(prop_oneof![0u64..8, any::<u64>()], 0..5),
        start in prop_oneof![0u64..40, any::<u64>()],
        end in prop_oneof![0u64..40, any::<u64>()],
    ) {
        let header = json!({
            "a": {"dtype": "F32", "shape": shape, "data_offsets": [start, end]},
            "b": {"dtype": "F8_E8M0", "shape": [5], "data_offsets": [24, 29]},
        });
        open_bytes(join(&serde_json::to_vec(&header).unwrap(), &[0; 37]));
    }

    #[test]
    fn mutated_configurations_never_panic(
        family in any::<bool>(),
        key in any::<prop::sample::Index>(),
        number in prop_oneof![0u64..70, any::<u64>()],
        list in any::<bool>(),
    ) {
        let json = match family {
            true => include_str!("data/model/v4-tiny/config.json"),
            false => include_str!("data/model/v41-tiny/config.json"),
        };
        let mut root: Value = serde_json::from_str(json).unwrap();
        let object = match family {
            true => root.as_object_mut().unwrap(),
            false => root["text_config"].as_object_mut().unwrap(),
        };
        let at = key.index(object.len());
        let value = object.values_mut().nth(at).unwrap();
        *value = if list { json!([number, number]) } else { json!(number) };
        let json = serde_json::to_vec(&root).unwrap();
        match ModelConfig::parse(&json, Path::new("config.json")) {
            Ok(config) => prop_assert!(weight_bytes(&config, ExpertFormat::Fp4).total() > 0),
            Err(error) => prop_assert_eq!(error.code, Code::BadFormat),
        }
    }
}

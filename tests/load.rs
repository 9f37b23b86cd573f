//! Whole checkpoints: what is accepted, what is counted, what the n-gram addresses are.

mod recipe_support;

use std::path::{Path, PathBuf};

use fathom::engine::Code;
use fathom::engine::model::compressed::compressed_ids;
use fathom::engine::model::config::{Family, ModelConfig};
use fathom::engine::model::engram::{DEAD, EngramHash, bucket_sizes, multipliers};
use fathom::engine::weights::expected::expected;
use fathom::engine::weights::{Checkpoint, Dtype, ExpertFormat, Shard, WeightBytes, weight_bytes};
use tokenizers::Tokenizer;

fn model(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match name {
        "fathom-demo" => root.join("models").join(name),
        _ => root.join("tests/data/model").join(name),
    }
}

fn open(name: &str) -> (ModelConfig, Checkpoint) {
    let dir = model(name);
    let config = ModelConfig::read(&dir).unwrap();
    let checkpoint = Checkpoint::open(&dir, &config).unwrap();
    (config, checkpoint)
}

fn golden(name: &str) -> Shard {
    Shard::open(&model(name)).unwrap()
}

const MODELS: [&str; 3] = ["v4-tiny", "v41-tiny", "fathom-demo"];

#[test]
fn bytes_add_up_to_what_the_index_says() {
    for name in MODELS {
        let (_, checkpoint) = open(name);
        let index = std::fs::read(model(name).join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let total = index["metadata"]["total_size"].as_u64().unwrap();
        assert_eq!(checkpoint.total_bytes(), total, "{name}");
        let listed = index["weight_map"].as_object().unwrap().len();
        assert_eq!(checkpoint.names().count(), listed, "{name}");
    }
}

#[test]
fn the_plan_without_a_checkpoint_is_exact() {
    for name in MODELS {
        let (config, checkpoint) = open(name);
        assert_eq!(checkpoint.expert_format(), ExpertFormat::Fp4);
        let plan = weight_bytes(&config, ExpertFormat::Fp4);
        assert_eq!(plan, checkpoint.weight_bytes(), "{name}");
        let drafts: usize = checkpoint
            .names()
            .filter(|name| name.starts_with("mtp."))
            .map(|name| checkpoint.tensor(name).unwrap().bytes.len())
            .sum();
        assert_eq!(drafts > 0, name == "fathom-demo");
        assert_eq!(
            plan.total() + drafts as u64,
            checkpoint.total_bytes(),
            "{name}"
        );
    }
}

#[test]
fn the_published_sizes_give_the_published_totals() {
    let json = std::fs::read(model("v41-tiny").join("config.json")).unwrap();
    let mut root: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let text = root["text_config"].as_object_mut().unwrap();
    let ratios: Vec<u32> = [vec![0; 2], vec![2; 18], vec![1; 20], vec![0; 3]].concat();
    for (key, value) in [
        ("vocab_size", 129_280),
        ("hidden_size", 5120),
        ("num_hidden_layers", 40),
        ("num_attention_heads", 64),
        ("head_dim", 512),
        ("q_lora_rank", 1280),
        ("o_lora_rank", 1024),
        ("o_groups", 8),
        ("moe_intermediate_size", 2304),
        ("n_routed_experts", 384),
        ("num_experts_per_tok", 6),
        ("index_n_heads", 32),
        ("index_topk", 512),
        ("candidate_source_layer_id", 20),
        ("engram_vocab_size", 16_000_000),
        ("engram_n_heads", 8),
        ("engram_head_dim", 256),
        ("engram_compressed_vocab_size", 99_092),
    ] {
        text.insert(key.into(), value.into());
    }
    text.insert("compress_ratios".into(), ratios.into());
    for (key, value) in [
        ("kv_source_layer_ids", vec![2, 8, 14, 20]),
        ("index_source_layer_ids", vec![2, 8, 14, 20, 24, 28, 32, 36]),
        ("engram_layer_ids", vec![1, 14]),
        ("engram_num_embeddings", vec![384_006_168, 384_016_682]),
    ] {
        text.insert(key.into(), value.into());
    }
    let json = serde_json::to_vec(&root).unwrap();
    let config = ModelConfig::parse(&json, Path::new("config.json")).unwrap();
    let plan = weight_bytes(&config, ExpertFormat::Fp4);
    let embedding = 2 * 129_280 * 5120 * 2;
    assert_eq!(plan.embedding, embedding);
    assert_eq!(plan.engram, (384_006_168 + 384_016_682) * 264);
    assert_eq!(plan.experts, 40 * 384 * 18_800_640);
    // The table of model-v41.md has 501.4 GB in all.
    assert_eq!((plan.total() as f64 / 1e8).round(), 5014.0);
}

#[test]
fn loading_touches_values_and_reports() {
    for name in MODELS {
        let (_, checkpoint) = open(name);
        for prefault in [false, true] {
            let mut reports = Vec::new();
            let mut progress = |fraction: f32, phase: &str| {
                reports.push((fraction, phase.to_string()));
                true
            };
            checkpoint.load(&mut progress, prefault).unwrap();
            assert_eq!(reports[0], (0.0, "weights".to_string()));
            assert!(
                reports.is_sorted_by(|a, b| a.0 <= b.0 && b.0 <= 1.0),
                "{reports:?}"
            );
        }
    }
}

#[test]
fn loading_stops_when_the_host_says_so() {
    let (_, checkpoint) = open("v4-tiny");
    let error = checkpoint.load(&mut |_, _| false, true).unwrap_err();
    assert_eq!(error.code, Code::Cancelled);
}

#[test]
fn views_are_the_bytes_of_the_file() {
    let (config, checkpoint) = open("v4-tiny");
    assert_eq!(config.family, Family::V4);
    let table = checkpoint.tensor("layers.0.ffn.gate.tid2eid").unwrap();
    assert_eq!(
        (table.dtype, table.shape.as_slice()),
        (Dtype::I64, [512, 2].as_slice())
    );
    // It lies at the start of the values of the first shard.
    let shard = std::fs::read(model("v4-tiny").join("model-00001-of-00002.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize;
    assert_eq!(&*table.bytes, &shard[start..start + 8192]);
    assert_eq!(table.to_i64().unwrap().len(), table.len());
    assert!(!checkpoint.has("layers.0.attn.compressor.ape"));
    let error = checkpoint
        .tensor("layers.0.attn.compressor.ape")
        .unwrap_err();
    assert!(
        error.message.contains("layers.0.attn.compressor.ape"),
        "{error}"
    );
}

#[test]
fn digests_name_models() {
    let digests: Vec<String> = MODELS.iter().map(|name| open(name).1.digest()).collect();
    assert!(digests.iter().all(|digest| digest.len() == 64));
    assert_eq!(digests[0], open("v4-tiny").1.digest());
    assert_ne!(digests[0], digests[1]);
    assert_ne!(digests[1], digests[2]);
}

/// Writes one file without an index from (name, type, shape, values).
fn write_single(dir: &Path, tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) {
    let mut header = serde_json::Map::new();
    let mut values = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = values.len();
        values.extend_from_slice(bytes);
        let info = serde_json::json!({
            "dtype": dtype, "shape": shape, "data_offsets": [start, values.len()],
        });
        header.insert(name.clone(), info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(values);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
}

/// Base checkpoints have FP8 experts, F32 scales and BF16 positions; this one also has a prefix on every
/// name and no index.
#[test]
fn base_checkpoints_load_by_what_is_stored() {
    let config = ModelConfig::read(&model("v4-tiny")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(
        model("v4-tiny").join("config.json"),
        dir.path().join("config.json"),
    )
    .unwrap();
    let mut tensors = Vec::new();
    let mut sum = 0;
    for wanted in expected(&config, ExpertFormat::Fp8) {
        let dtype = match wanted.name.ends_with(".ape") {
            true => Dtype::Bf16,
            false => wanted.dtypes[0],
        };
        let bytes = wanted.shape.iter().product::<usize>() * dtype.size();
        sum += bytes as u64;
        let name = format!("model.{}", wanted.name);
        tensors.push((name, dtype.name(), wanted.shape, vec![0; bytes]));
    }
    write_single(dir.path(), &tensors);

    let checkpoint = Checkpoint::open(dir.path(), &config).unwrap();
    assert_eq!(checkpoint.expert_format(), ExpertFormat::Fp8);
    let scale = checkpoint
        .tensor("layers.3.ffn.experts.7.w2.scale")
        .unwrap();
    assert_eq!(
        (scale.dtype, scale.shape.as_slice()),
        (Dtype::F32, [1, 1].as_slice())
    );
    let ape = checkpoint.tensor("layers.1.attn.compressor.ape").unwrap();
    assert_eq!(ape.dtype, Dtype::Bf16);
    assert_eq!(checkpoint.total_bytes(), sum);
    assert_eq!(checkpoint.weight_bytes().total(), sum);
    assert_ne!(checkpoint.weight_bytes(), WeightBytes::default());
    checkpoint.load(&mut |_, _| true, true).unwrap();
}

fn read_tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_file(model(name).join("tokenizer.json")).unwrap()
}

#[test]
fn compressed_ids_of_the_tiny_model_are_the_golden_ones() {
    let ids = compressed_ids(&read_tokenizer("v41-tiny")).unwrap();
    let wanted = golden("v41-tiny/golden.safetensors");
    let wanted = wanted.tensor("engram.token_map").unwrap().to_i64().unwrap();
    assert_eq!(
        ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>(),
        wanted
    );
}

#[test]
fn compressed_ids_of_the_demo_model_are_as_many_as_it_says() {
    let config = ModelConfig::read(&model("fathom-demo")).unwrap();
    let ids = compressed_ids(&read_tokenizer("fathom-demo")).unwrap();
    EngramHash::new(&config.engram.unwrap(), &ids).unwrap();
}

#[test]
fn compressed_ids_of_the_released_tokenizer_are_as_many_as_its_model_says() {
    let file = recipe_support::v41_file("<｜deepseek_image｜>");
    let ids = compressed_ids(&Tokenizer::from_bytes(file).unwrap()).unwrap();
    assert_eq!(ids.len(), 129_280);
    assert_eq!(ids.iter().max(), Some(&99_091));
}

fn flat<T: Copy + Into<i64>>(nested: &[Vec<T>]) -> Vec<i64> {
    nested.iter().flatten().map(|&value| value.into()).collect()
}

#[test]
fn n_gram_rows_of_the_tiny_model_are_the_golden_ones() {
    let config = ModelConfig::read(&model("v41-tiny")).unwrap();
    let engram = config.engram.unwrap();
    let golden = golden("v41-tiny/golden.safetensors");
    let numbers = |name: &str| golden.tensor(name).unwrap().to_i64().unwrap();
    assert_eq!(flat(&multipliers(&engram)), numbers("engram.multipliers"));
    let sizes: Vec<Vec<u32>> = bucket_sizes(&engram).concat();
    assert_eq!(flat(&sizes), numbers("engram.bucket_sizes"));

    let map: Vec<u32> = numbers("engram.token_map")
        .iter()
        .map(|&id| id as u32)
        .collect();
    let hash = EngramHash::new(&engram, &map).unwrap();
    let ids = numbers("input_ids");
    let text: Vec<i64> = ids.iter().map(|&id| hash.compress(id as u32)).collect();
    let mask = numbers("image.mask");
    assert!(mask.contains(&1));
    let with_images = text
        .iter()
        .zip(&mask)
        .map(|(&id, &image)| if image == 1 { DEAD } else { id });
    let with_images: Vec<i64> = with_images.collect();
    for (which, layer) in engram.layers.iter().enumerate() {
        for (prefix, history) in [("", &text), ("image.", &with_images)] {
            let wanted = numbers(&format!("{prefix}engram_rows.{layer}"));
            let mut rows = Vec::new();
            hash.rows(which, history, history.len(), &mut rows);
            let rows: Vec<i64> = rows.iter().map(|&row| row.into()).collect();
            assert!(rows == wanted, "{prefix}engram_rows.{layer}");
        }
    }
}

#[test]
fn n_gram_rows_with_the_published_constants_are_the_golden_ones() {
    let engram = fathom::engine::model::config::EngramConfig {
        layers: vec![1, 14],
        rows: vec![384_006_168, 384_016_682],
        ngram: 4,
        vocab: 16_000_000,
        heads: 8,
        head_dim: 256,
        pad_token: 2,
        compressed_vocab: 99_092,
    };
    let golden = golden("formats/formats.safetensors");
    let numbers = |name: String| golden.tensor(&name).unwrap().to_i64().unwrap();
    let map: Vec<u32> = (0..99_092).collect();
    let hash = EngramHash::new(&engram, &map).unwrap();
    let compressed = numbers("engram.compressed_ids".into());
    assert!(compressed.contains(&DEAD));
    for (which, layer) in [1, 14].into_iter().enumerate() {
        let sizes = flat(&bucket_sizes(&engram)[which]);
        assert_eq!(sizes, numbers(format!("engram.bucket_sizes.{layer}")));
        let factors = &multipliers(&engram)[which];
        assert_eq!(factors, &numbers(format!("engram.multipliers.{layer}")));
        let mut rows = Vec::new();
        hash.rows(which, &compressed, compressed.len(), &mut rows);
        let rows: Vec<i64> = rows.iter().map(|&row| row.into()).collect();
        assert_eq!(rows, numbers(format!("engram.rows.{layer}")));
    }
}

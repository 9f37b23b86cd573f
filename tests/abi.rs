//! The layout of every struct of the header: as C sees it, as Rust sees it, and as it was released.
//!
//! `FATHOM_BLESS=1 cargo test --test abi` writes `tests/abi/layout.json`; against a release only appended
//! fields may differ.

#![cfg(unix)]

mod cabi;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;

use fathom::capi;

/// Offset and size of each field; the empty name is the struct itself.
type Layout = BTreeMap<String, BTreeMap<String, [usize; 2]>>;

/// The size of a field, without a value of the struct.
fn size_of_field<S, F>(_field: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layout {
    ($layout:ident, $module:ident :: $name:ident { $($field:ident),* }) => {
        let mut fields = BTreeMap::from([(String::new(), [0, size_of::<capi::$module::$name>()])]);
        $(fields.insert(
            stringify!($field).to_owned(),
            [
                offset_of!(capi::$module::$name, $field),
                size_of_field(|value: &capi::$module::$name| &value.$field),
            ],
        );)*
        $layout.insert(stringify!($name).to_owned(), fields);
    };
}

fn of_rust() -> Layout {
    let mut layout = Layout::new();
    layout!(layout, types::fathom_str { ptr, len });
    layout!(
        layout,
        engine::fathom_engine_options {
            struct_size,
            model_path,
            device,
            kv_bytes,
            max_context,
            max_running,
            max_queued,
            cpu_threads,
            flags,
            reserved0,
            progress,
            progress_data,
            tuning_json
        }
    );
    layout!(
        layout,
        engine::fathom_engine_info {
            struct_size,
            vocab_size,
            max_context,
            max_running,
            device_count,
            weight_bytes,
            kv_bytes,
            kv_blocks,
            model_name
        }
    );
    layout!(
        layout,
        request::fathom_submit_options {
            struct_size,
            tag,
            priority,
            flags,
            deadline_ms,
            max_unread_tokens,
            max_tokens,
            temperature,
            top_p,
            seed,
            logprobs,
            stop_token_count,
            stop_tokens,
            constraint,
            params_json
        }
    );
    layout!(
        layout,
        queue::fathom_queue_options {
            struct_size,
            flags,
            wake_interval_us
        }
    );
    layout!(
        layout,
        queue::fathom_usage {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            reasoning_tokens,
            drafted_tokens,
            accepted_tokens,
            queued_us,
            prefill_us,
            decode_us
        }
    );
    layout!(
        layout,
        queue::fathom_event {
            request,
            tag,
            kind,
            finish,
            tokens,
            logprobs,
            token_count,
            name,
            data,
            error,
            usage,
            top_tokens,
            top_logprobs,
            top_count,
            choice,
            detail
        }
    );
    layout!(
        layout,
        recipe::fathom_recipe_options {
            struct_size,
            tokenizer_path,
            aliases_json,
            max_context,
            flags,
            max_images,
            max_image_concurrency,
            max_image_bytes,
            max_image_total_bytes,
            max_image_pixels,
            options_json
        }
    );
    layout!(
        layout,
        recipe::fathom_prepared_info {
            struct_size,
            model,
            protocol,
            stream,
            token_count,
            image_count,
            pending_images,
            max_tokens,
            temperature,
            top_p,
            constraint_kind,
            reserved0
        }
    );
    layout!(layout, recipe::fathom_range { start, end });
    layout!(
        layout,
        parser::fathom_parser_start_info {
            struct_size,
            prompt_tokens,
            cached_tokens,
            created_unix_s,
            response_id,
            system_fingerprint,
            model,
            choice,
            reserved0
        }
    );
    layout!(
        layout,
        parser::fathom_chunk {
            struct_size,
            tokens,
            token_count,
            text,
            text_tokens,
            top_count,
            logprobs,
            top_tokens,
            top_logprobs
        }
    );
    layout!(
        layout,
        image::fathom_image_source {
            struct_size,
            kind,
            resolved,
            url,
            file_id
        }
    );
    layout!(
        layout,
        image::fathom_fetch_policy {
            struct_size,
            flags,
            max_redirects,
            timeout_ms,
            allow_hosts_json,
            decide,
            decide_data
        }
    );
    layout!(
        layout,
        call::fathom_call_options {
            struct_size,
            submit,
            fetch,
            response_id,
            created_unix_s,
            options_json
        }
    );
    layout!(
        layout,
        metrics::fathom_engine_stats {
            struct_size,
            requests_accepted,
            requests_finished,
            requests_refused,
            requests_cancelled,
            requests_failed,
            tokens_prefilled,
            tokens_cached,
            tokens_decoded,
            tokens_drafted,
            tokens_accepted,
            steps,
            preemptions,
            paused_for_reader,
            running,
            waiting,
            paused,
            kv_blocks_used,
            kv_blocks_total,
            reserved0
        }
    );
    layout
}

/// What the C compiler says, as text.
fn of_c() -> Option<String> {
    if !cabi::have("gcc") {
        return None;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join("layout");
    cabi::compile(&cabi::root().join("tests/abi/layout.c"), &program, &[]);
    let output = cabi::run(&mut Command::new(program));
    Some(String::from_utf8(output.stdout).expect("names are ASCII"))
}

fn read(text: &str) -> Layout {
    let value: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
    let number = |value: &serde_json::Value| {
        usize::try_from(value.as_u64().expect("a number")).expect("it fits")
    };
    let entries = |value: &serde_json::Value| value.as_object().expect("an object").clone();
    entries(&value)
        .into_iter()
        .map(|(name, fields)| {
            let fields = entries(&fields)
                .into_iter()
                .map(|(field, place)| (field, [number(&place[0]), number(&place[1])]));
            (name, fields.collect())
        })
        .collect()
}

#[test]
fn c_and_rust_and_the_committed_layout_agree() {
    let path = cabi::root().join("tests/abi/layout.json");
    let in_c = of_c();
    if let (Some(text), Some(_)) = (&in_c, std::env::var_os("FATHOM_BLESS")) {
        std::fs::write(&path, text).expect("writable");
    }
    let committed = read(&std::fs::read_to_string(&path).expect("the committed layout"));
    assert_eq!(of_rust(), committed);
    if let Some(text) = in_c {
        assert_eq!(read(&text), committed);
    }
}

#[test]
fn no_struct_has_padding() {
    for (name, fields) in of_rust() {
        let fields_alone = fields.iter().filter(|(field, _)| !field.is_empty());
        let sum: usize = fields_alone.map(|(_, place)| place[1]).sum();
        assert_eq!(sum, fields[""][1], "{name}");
    }
}

//! `include/fathom.h` is what the sources say, and every compiler takes it.
//!
//! `FATHOM_BLESS=1 cargo test --test header` writes the header.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The topics of the header, in its order: a file of `src/capi/` and a heading.
const TOPICS: [(&str, &str); 13] = [
    ("types", "Basic types"),
    ("library", "Library: version, devices, log, bytes, errors"),
    ("engine", "Engine"),
    ("request", "Requests"),
    ("queue", "Polling: queues and events"),
    ("batch", "Polling: batches"),
    ("recipe", "Recipe: requests to tokens"),
    ("parser", "Recipe: tokens to events"),
    ("image", "Images"),
    ("call", "The ready-made adapter"),
    ("tokenizer", "Tokenizer"),
    ("constraint", "Constraints"),
    ("metrics", "Metrics"),
];

const TOP: &str = r#"/*
 * fathom: runs DeepSeek V4 and V4.1 models inside the caller's process, and turns API requests into prompts
 * and model tokens into protocol events.
 *
 * Rendered from src/capi/ by `cargo test --test header`; do not edit.
 *
 * Threads. `const T *` may be used by any number of threads at once. `fathom_engine *` and `fathom_queue *`, too.
 * A batch, a parser, and a prepared request with pending images are for one thread at a time; a second one gets
 * FATHOM_ERR_STATE. No object belongs to the thread that made it.
 *
 * Ownership. `_new` and `_open` make a handle, `_free` gives it back and takes NULL. Handles may be freed in any
 * order and from any thread. No pointer from this library may go to free(). What a function lends lives as long
 * as the object it came from, unless the function says less.
 *
 * Outputs are written on FATHOM_OK only; `*out` is set to NULL or 0 before anything else, `*err` to NULL.
 * `err` may be NULL; an error that it received is freed with fathom_error_free.
 *
 * Inputs are copied before a call returns, unless a function says otherwise. Text is UTF-8, needs no NUL and may
 * contain it. Text that the library returns has one NUL behind its last byte, which its length does not count.
 *
 * Structs that start with struct_size grow at their end only. Set one up with its _init, or zero it and set
 * struct_size to its sizeof.
 *
 * Every function answers FATHOM_ERR_INVALID_ARGUMENT for NULL, freed and wrong handles, unknown numbers and
 * unknown flags; FATHOM_ERR_ABI for a struct_size that cannot be, and for bytes beyond what it knows;
 * FATHOM_ERR_PANIC for a contained bug, after which a parser or prepared request answers FATHOM_ERR_POISONED.
 *
 * After a fork, engines and queues of the parent answer FATHOM_ERR_FORKED in the child; all else works there.
 */

#ifndef FATHOM_H
#define FATHOM_H

#include <stddef.h>
#include <stdint.h>

#if !defined(FATHOM_API)
#if defined(_WIN32) && !defined(FATHOM_STATIC)
#define FATHOM_API __declspec(dllimport)
#else
#define FATHOM_API
#endif
#endif

#if !defined(FATHOM_NODISCARD)
#if defined(__GNUC__) || defined(__clang__)
#define FATHOM_NODISCARD __attribute__((warn_unused_result))
#else
#define FATHOM_NODISCARD
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif
"#;

const BOTTOM: &str = r#"
#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FATHOM_H */
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rendered() -> String {
    let settings =
        cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("cbindgen.toml");
    let mut header = TOP.to_owned();
    for (topic, heading) in TOPICS {
        let source = root().join(format!("src/capi/{topic}.rs"));
        let mut settings = settings.clone();
        if topic == "types" {
            // Handles that no function of this file mentions would be left out.
            settings.export.include = opaque_types(&source);
        }
        let mut part = Vec::new();
        cbindgen::Builder::new()
            .with_src(source)
            .with_config(settings)
            .generate()
            .unwrap_or_else(|error| panic!("{topic}: {error}"))
            .write(&mut part);
        let part = compact(&String::from_utf8(part).expect("sources are UTF-8"));
        write!(header, "\n/* ---- {heading} ---- */\n\n{}\n", part.trim()).expect("memory");
    }
    header.push_str(BOTTOM);
    header
}

/// Comments of one line take one line; the others get a margin.
fn compact(part: &str) -> String {
    let mut compacted: Vec<String> = Vec::new();
    let mut comment: Option<(usize, Vec<&str>)> = None;
    for line in part.lines() {
        let text = line.trim();
        match &mut comment {
            None if text == "/*" => comment = Some((line.len() - 2, Vec::new())),
            None => compacted.push(line.to_owned()),
            Some((indent, lines)) if text == "*/" => {
                let margin = " ".repeat(*indent);
                if let [only] = lines[..] {
                    compacted.push(format!("{margin}/* {only} */"));
                } else {
                    compacted.push(format!("{margin}/*"));
                    compacted.extend(lines.iter().map(|line| format!("{margin} * {line}")));
                    compacted.push(format!("{margin} */"));
                }
                comment = None;
            }
            Some((_, lines)) => lines.push(text),
        }
    }
    compacted.join("\n")
}

fn opaque_types(source: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(source).expect("readable");
    let names: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub struct "))
        .chain(
            text.lines()
                .filter_map(|line| line.strip_prefix("pub type ")),
        )
        .filter_map(|rest| rest.split([' ', '=', '{']).next())
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 10, "the file's form has changed: {names:?}");
    names
}

#[test]
fn the_committed_header_is_what_the_sources_say() {
    let path = root().join("include/fathom.h");
    let rendered = rendered();
    if std::env::var_os("FATHOM_BLESS").is_some() {
        std::fs::write(&path, &rendered).expect("writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = committed
        .lines()
        .zip(rendered.lines())
        .position(|(committed, rendered)| committed != rendered);
    assert!(
        committed == rendered,
        "include/fathom.h differs from src/capi/ at line {}; FATHOM_BLESS=1 writes it",
        differing.map_or(committed.lines().count(), |line| line + 1)
    );
}

/// Warnings that a user's build may have on, as errors.
const STRICT: [&str; 7] = [
    "-Wall",
    "-Wextra",
    "-pedantic",
    "-Wpadded",
    "-Wundef",
    "-Werror",
    "-fsyntax-only",
];

#[test]
fn every_compiler_takes_the_header_alone_and_twice() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    // Not the committed file, which the other test may be writing.
    std::fs::write(folder.path().join("fathom.h"), rendered()).expect("writable");
    let source = folder.path().join("twice.h");
    std::fs::write(&source, "#include <fathom.h>\n#include <fathom.h>\n").expect("writable");
    let mut tried = 0;
    for (compiler, language, standards) in [
        ("gcc", "c", &["c99", "c11", "c17", "c2x"][..]),
        ("clang", "c", &["c99", "c11", "c17", "c2x"][..]),
        ("g++", "c++", &["c++17", "c++20"][..]),
        ("clang++", "c++", &["c++17", "c++20"][..]),
    ] {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("skipped: {compiler} is not here");
            assert!(
                std::env::var_os("FATHOM_REQUIRE_ALL").is_none(),
                "{compiler} is not here"
            );
            continue;
        }
        for standard in standards {
            compile(compiler, language, standard, &source);
            tried += 1;
        }
    }
    assert!(tried > 0 || std::env::var_os("FATHOM_REQUIRE_ALL").is_none());
}

fn compile(compiler: &str, language: &str, standard: &str, source: &Path) {
    let folder = source.parent().expect("it is in a folder");
    let output = Command::new(compiler)
        .args(STRICT)
        .arg(format!("-std={standard}"))
        .args(["-x", language])
        .arg("-I")
        .arg(folder)
        .arg(source)
        .output()
        .expect("the compiler starts");
    assert!(
        output.status.success(),
        "{compiler} -std={standard}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

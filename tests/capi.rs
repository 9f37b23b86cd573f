//! The C tests of `tests/capi/`: each file is a program that checks one topic and ends with 0.
//!
//! FATHOM_ASAN=1 compiles them with AddressSanitizer and UBSan, against the library as it is built here.
//! To have the library's own accesses checked as well, build it on nightly; gcc's runtime serves both sides:
//! `FATHOM_ASAN=1 RUSTFLAGS=-Zsanitizer=address cargo +nightly test --target x86_64-unknown-linux-gnu --test capi`.

#![cfg(target_os = "linux")]

mod cabi;

use std::path::Path;
use std::process::Command;

/// Compiles and runs one program; it must say nothing.
fn program(name: &str, arguments: &[&Path]) {
    if !cabi::have("gcc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join(name);
    let source = cabi::root().join(format!("tests/capi/{name}.c"));
    let linked = cabi::linked();
    let mut extra: Vec<&str> = linked.iter().map(String::as_str).collect();
    extra.push("-lm");
    cabi::compile(&source, &program, &extra);
    let output = cabi::run(Command::new(program).args(arguments));
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{name} wrote: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// As [`program`], with the demo model.
fn with_model(name: &str) {
    if let Some(model) = cabi::model() {
        program(name, &[&model]);
    }
}

#[test]
fn library() {
    program("library", &[]);
}

#[test]
fn options() {
    program("options", &[]);
}

#[test]
fn handles_without_a_model() {
    program("handles", &[]);
}

#[test]
fn handles() {
    with_model("handles");
}

#[test]
fn engine() {
    with_model("engine");
}

#[test]
fn request() {
    with_model("request");
}

#[test]
fn params() {
    with_model("params");
}

#[test]
fn recipe() {
    with_model("recipe");
}

#[test]
fn parser() {
    with_model("parser");
}

#[test]
fn call() {
    with_model("call");
}

#[test]
fn protocols() {
    with_model("protocols");
}

#[test]
fn responses() {
    with_model("responses");
}

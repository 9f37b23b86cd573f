//! A panic in any layer becomes a status, is told to the log and to nobody else, and the host lives.
//!
//! `cargo test --features fault-injection --test panics`

#![cfg(all(feature = "fault-injection", target_os = "linux"))]

mod cabi;

use std::process::Command;

#[test]
fn a_panic_in_any_layer_becomes_a_status() {
    let Some(model) = cabi::model() else { return };
    if !cabi::have("gcc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join("panics");
    let linked = cabi::linked();
    let mut extra: Vec<&str> = linked.iter().map(String::as_str).collect();
    extra.push("-lm");
    cabi::compile(&cabi::root().join("tests/capi/panics.c"), &program, &extra);
    let output = cabi::run(Command::new(program).arg(model));
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "a panic was printed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

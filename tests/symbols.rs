//! The library exports what `include/fathom.symbols` lists, and needs and says what a guest should.
//!
//! `FATHOM_BLESS=1 cargo test --test symbols` adds new symbols with the current version.

#![cfg(target_os = "linux")]

mod cabi;

use std::collections::BTreeMap;
use std::process::Command;

/// Symbols that the dynamic linker sees.
fn exported() -> Vec<String> {
    let output = cabi::run(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(cabi::library()),
    );
    let text = String::from_utf8(output.stdout).expect("symbols are ASCII");
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

/// `name version` lines: the version that brought each.
fn listed() -> BTreeMap<String, String> {
    let text =
        std::fs::read_to_string(cabi::root().join("include/fathom.symbols")).unwrap_or_default();
    text.lines()
        .map(|line| {
            let (name, version) = line.split_once(' ').expect("lines are `name version`");
            (name.to_owned(), version.to_owned())
        })
        .collect()
}

#[test]
fn the_library_exports_what_is_listed_and_nothing_else() {
    if !cabi::have("nm") {
        return;
    }
    let (exported, mut listed) = (exported(), listed());
    if std::env::var_os("FATHOM_BLESS").is_some() {
        for name in &exported {
            listed
                .entry(name.clone())
                .or_insert_with(|| env!("CARGO_PKG_VERSION").to_owned());
        }
        let text: String = listed
            .iter()
            .map(|(name, version)| format!("{name} {version}\n"))
            .collect();
        std::fs::write(cabi::root().join("include/fathom.symbols"), text).expect("writable");
    }
    let expected: Vec<String> = listed.keys().cloned().collect();
    assert_eq!(exported, expected);
    assert!(exported.iter().all(|name| name.starts_with("fathom_")));
}

#[test]
fn the_header_declares_every_symbol() {
    let header =
        std::fs::read_to_string(cabi::root().join("include/fathom.h")).expect("the header");
    for name in listed().keys() {
        assert!(
            header.contains(&format!("{name}(")),
            "{name} is not in the header"
        );
    }
}

/// The dynamic section, as readelf prints it.
fn dynamic() -> Option<String> {
    if !cabi::have("readelf") {
        return None;
    }
    let output = cabi::run(
        Command::new("readelf")
            .args(["-d", "-W"])
            .arg(cabi::library()),
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_library_needs_only_what_every_process_has() {
    let Some(dynamic) = dynamic() else { return };
    let mut needed = 0;
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let name = line
            .split(['[', ']'])
            .nth(1)
            .expect("readelf writes names in brackets");
        let base = name.split(".so").next().expect("a name");
        // The last three are part of libc since glibc 2.34.
        let known = ["libc", "libm", "libgcc_s", "libpthread", "libdl", "librt"];
        assert!(
            known.contains(&base) || base.starts_with("ld-linux"),
            "{name} is needed"
        );
        needed += 1;
    }
    assert!(needed > 0, "{dynamic}");
}

#[test]
fn the_library_has_its_soname_stays_mapped_and_loads_late() {
    let Some(dynamic) = dynamic() else { return };
    assert!(
        dynamic.contains("Library soname: [libfathom.so.0]"),
        "{dynamic}"
    );
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    assert!(!dynamic.contains("STATIC_TLS"), "{dynamic}");
}

#[test]
fn the_library_has_no_destructors_of_its_own() {
    let Some(dynamic) = dynamic() else { return };
    if !cabi::have("nm") {
        return;
    }
    // `atexit` needs no symbol of ours, but an import; the C runtime's own fini arrays stay.
    let output = cabi::run(
        Command::new("nm")
            .args(["-D", "--undefined-only"])
            .arg(cabi::library()),
    );
    let imports = String::from_utf8_lossy(&output.stdout).into_owned();
    for forbidden in [
        "atexit",
        "on_exit",
        "pthread_atfork",
        "sigaction",
        "signal",
        "setlocale",
        "umask",
        "chdir",
        "putenv",
        "listen",
    ] {
        let used = imports
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .map(|name| name.split('@').next().unwrap_or(name))
            .any(|name| name == forbidden);
        assert!(!used, "the library imports {forbidden}");
    }
    assert!(!dynamic.is_empty());
}

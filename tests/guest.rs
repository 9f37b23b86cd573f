//! fathom as a guest in somebody else's process: each program of `tests/guest/` loads the library by
//! `dlopen` and must leave the process as it was, and silent.

#![cfg(target_os = "linux")]

mod cabi;

use std::path::PathBuf;
use std::process::Command;

/// Compiles and runs a program with the library's path and, if given, the model's.
fn guest(name: &str, model: Option<PathBuf>) {
    if !cabi::have("gcc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join(name);
    let source = cabi::root().join(format!("tests/guest/{name}.c"));
    cabi::compile(&source, &program, &[]);
    let output = cabi::run(Command::new(&program).arg(cabi::library()).args(model));
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{name} wrote: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_process_is_left_as_it_was() {
    guest("quiet", None);
}

#[test]
fn the_process_is_left_as_it_was_after_a_model_ran() {
    if let Some(model) = cabi::model() {
        guest("quiet", Some(model));
    }
}

#[test]
fn it_is_loaded_and_unloaded_while_threads_are_alive() {
    guest("reload", None);
}

#[test]
fn it_is_unloaded_while_its_own_threads_are_alive() {
    if let Some(model) = cabi::model() {
        guest("reload", Some(model));
    }
}

#[test]
fn a_forked_child_gets_a_status_from_the_engine_and_uses_the_rest() {
    if let Some(model) = cabi::model() {
        guest("forked", Some(model));
    }
}

/// Sockets that listen, on the whole machine as this process sees it.
fn listening() -> Vec<String> {
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let Ok(text) = std::fs::read_to_string(table) else {
            continue;
        };
        found.extend(
            text.lines()
                // `0A` is LISTEN.
                .filter(|line| line.split_whitespace().nth(3) == Some("0A"))
                .filter_map(|line| line.split_whitespace().nth(9).map(str::to_owned)),
        );
    }
    found
}

/// Inodes of the sockets that this process has open.
fn own_sockets() -> Vec<String> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    folder
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|target| {
            let name = target.to_str()?.strip_prefix("socket:[")?.to_owned();
            Some(name.trim_end_matches(']').to_owned())
        })
        .collect()
}

#[test]
fn nothing_listens() {
    // The library linked into this very process: what it opens is ours.
    let mut buffer = std::ptr::null_mut();
    // SAFETY: the out-parameter is writable, the error one may be NULL.
    let status =
        unsafe { fathom::capi::library::fathom_devices(&mut buffer, std::ptr::null_mut()) };
    assert_eq!(status, fathom::capi::types::FATHOM_OK);
    // SAFETY: a handle may be any value.
    unsafe { fathom::capi::library::fathom_buf_free(buffer) };
    let own = own_sockets();
    assert!(listening().iter().all(|inode| !own.contains(inode)));
}

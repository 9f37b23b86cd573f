//! What the tests of the built library share: where it is, compilers and tools, and loud skips.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test uses a part of it, as a module"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with `libfathom.so`, which Cargo builds beside the tests.
pub fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("tests know where they are");
    test.parent().expect("it is in a folder").to_owned()
}

/// The shared library itself.
pub fn library() -> PathBuf {
    let path = library_folder().join("libfathom.so");
    assert!(path.exists(), "{} was not built", path.display());
    path
}

/// The demo model, or a skip.
pub fn model() -> Option<PathBuf> {
    let path = root().join("models/fathom-demo");
    if path.join("config.json").exists() {
        return Some(path);
    }
    skip("models/fathom-demo is not here");
    None
}

/// Says that something was not tested; with FATHOM_REQUIRE_ALL=1 that is a failure.
pub fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    assert!(
        std::env::var_os("FATHOM_REQUIRE_ALL").is_none(),
        "not everything was tested: {reason}"
    );
}

/// Whether a tool can be started; skips loudly if not.
pub fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        skip(&format!("{tool} is not here"));
    }
    found
}

/// The output of a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Compiles a C program against the header and the library.
pub fn compile(source: &Path, program: &Path, extra: &[&str]) {
    let folder = library_folder();
    run(Command::new("gcc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(sanitizer())
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .arg("-o")
        .arg(program)
        .args(extra)
        .arg("-L")
        .arg(&folder)
        .arg("-lpthread")
        .arg("-ldl"));
}

/// FATHOM_ASAN=1 puts the C side under AddressSanitizer.
fn sanitizer() -> &'static [&'static str] {
    if std::env::var_os("FATHOM_ASAN").is_some() {
        &["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
    } else {
        &[]
    }
}

/// Links a program with the library, by its path: the SONAME has no file beside the tests.
pub fn linked() -> Vec<String> {
    vec![
        "-l:libfathom.so".to_owned(),
        format!("-Wl,-rpath,{}", soname_folder().display()),
    ]
}

/// A folder in which the library has its SONAME as a file name, as an installation has.
pub fn soname_folder() -> PathBuf {
    let folder = library_folder().join("soname");
    std::fs::create_dir_all(&folder).expect("writable");
    let link = folder.join("libfathom.so.0");
    // Several tests may do this at once; whoever is first wins.
    if let Err(error) = std::os::unix::fs::symlink("../libfathom.so", &link) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
    }
    folder
}

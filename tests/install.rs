//! A stranger's build: `make install` into an empty place, then a C program that knows nothing but pkg-config.
//!
//! Skipped, with a message, where make, a C compiler or pkg-config is missing; with `FATHOM_REQUIRE_ALL=1` that fails.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Prints which version it was compiled for and which it found.
const PROGRAM: &str = r#"
#include <fathom.h>
#include <stdio.h>
int main(void) {
  printf("%s %u %u\n", fathom_version(), (unsigned)fathom_abi_version(), (unsigned)FATHOM_ABI_VERSION);
  return 0;
}
"#;

#[test]
fn a_stranger_builds_against_the_installed_library() {
    if !tools_present() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let staged = scratch.path().join("staged");
    // Staging as packagers do: the files land below DESTDIR and name the final prefix nowhere.
    run(Command::new("make")
        .current_dir(ROOT)
        .args(["install", "PREFIX=/opt/fathom"])
        .arg(assignment("DESTDIR", &staged)));

    let prefix = scratch.path().join("elsewhere");
    fs::rename(staged.join("opt/fathom"), &prefix).unwrap();
    let library = Installed { prefix };

    assert_eq!(
        library.pkg_config(&["--modversion"]),
        env!("CARGO_PKG_VERSION")
    );
    let abi = library.pkg_config(&["--variable=abi"]);
    let expected = format!("{} {abi} {abi}\n", env!("CARGO_PKG_VERSION"));

    let source = scratch.path().join("version.c");
    fs::write(&source, PROGRAM).unwrap();
    let shared = library.compile(&source, "shared", &library.shared_flags());
    assert_eq!(library.run(&shared, &[]), expected);

    if cfg!(target_os = "linux") {
        // The archive alone: the program must not look for the shared library.
        let archive = library.prefix.join("lib/libfathom.a");
        let private = library
            .pkg_config(&["--static", "--libs-only-l"])
            .replace("-lfathom", "");
        let mut flags = vec![archive.to_str().unwrap().to_owned()];
        flags.extend(private.split_whitespace().map(str::to_owned));
        flags.extend(library.include_flags());
        let alone = library.compile(&source, "alone", &flags);
        fs::rename(library.prefix.join("lib"), library.prefix.join("hidden")).unwrap();
        assert_eq!(library.run(&alone, &[]), expected);
        fs::rename(library.prefix.join("hidden"), library.prefix.join("lib")).unwrap();
    }

    let chat = Path::new(ROOT).join("examples/c/chat.c");
    let chat = library.compile(&chat, "chat", &library.shared_flags());
    let model = Path::new(ROOT).join("models/fathom-demo");
    let story = library.run(&chat, &[model.as_os_str()]);
    assert!(
        story.contains("Lily"),
        "the story does not name its hero: {story:?}"
    );
    assert!(
        story.trim_end().ends_with('.'),
        "the story does not end: {story:?}"
    );

    // The README's program, from the repository's root as it says.
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let source = scratch.path().join("hello.c");
    fs::write(&source, c_block(&readme)).unwrap();
    let hello = library.compile(&source, "hello", &library.shared_flags());
    let response = run(Command::new(&hello).current_dir(ROOT));
    let response: serde_json::Value = serde_json::from_str(&response).unwrap();
    let answer = &response["choices"][0]["message"]["content"];
    assert!(
        answer.as_str().is_some_and(|text| text.contains("Lily")),
        "{response}"
    );

    let nothing_there = library.output(&chat, &[scratch.path().as_os_str()]);
    assert_eq!(
        nothing_there.0,
        Some(1),
        "a directory without a model must fail"
    );
    assert!(
        nothing_there.2.contains("FATHOM_ERR_"),
        "no status in {:?}",
        nothing_there.2
    );
}

/// The first block of C in a Markdown file.
fn c_block(markdown: &str) -> &str {
    let (_, rest) = markdown
        .split_once("```c\n")
        .expect("README.md shows a program in C");
    rest.split_once("```").expect("the block ends").0
}

struct Installed {
    prefix: PathBuf,
}

impl Installed {
    fn pkg_config(&self, arguments: &[&str]) -> String {
        let output = run(Command::new(pkg_config())
            .env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"))
            .args(arguments)
            .arg("fathom"));
        output.trim().to_owned()
    }

    fn include_flags(&self) -> Vec<String> {
        words(&self.pkg_config(&["--cflags"]))
    }

    fn shared_flags(&self) -> Vec<String> {
        let mut flags = words(&self.pkg_config(&["--cflags", "--libs"]));
        flags.push(format!("-Wl,-rpath,{}", self.prefix.join("lib").display()));
        flags
    }

    /// Compiles with warnings as errors: the header must be clean in a stranger's strict build.
    fn compile(&self, source: &Path, name: &str, flags: &[String]) -> PathBuf {
        let program = self.prefix.join(name);
        run(Command::new(compiler())
            .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg(source)
            .args(flags)
            .arg("-o")
            .arg(&program));
        program
    }

    fn run(&self, program: &Path, arguments: &[&OsStr]) -> String {
        run(Command::new(program).args(arguments))
    }

    fn output(&self, program: &Path, arguments: &[&OsStr]) -> (Option<i32>, String, String) {
        let output = Command::new(program).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }
}

fn tools_present() -> bool {
    let missing: Vec<String> = ["make".to_owned(), compiler(), pkg_config()]
        .into_iter()
        .filter(|tool| Command::new(tool).arg("--version").output().is_err())
        .collect();
    if missing.is_empty() {
        return true;
    }
    let message =
        format!("skipped: {missing:?} missing; install with: apt-get install make gcc pkg-config");
    let required = std::env::var_os("FATHOM_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "{message}");
    eprintln!("{message}");
    false
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

fn pkg_config() -> String {
    std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned())
}

fn words(flags: &str) -> Vec<String> {
    flags.split_whitespace().map(str::to_owned).collect()
}

fn assignment(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Runs to the end and returns stdout; a failure shows all that was said.
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the program prints UTF-8")
}

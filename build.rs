//! What Cargo cannot say of the shared library: its SONAME, and what it must not export.

use std::env;

/// Counts breaks of the ABI; the SONAME carries it (`FATHOM_ABI_VERSION` in `src/capi/types.rs`).
const ABI_VERSION: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Release builds pass the commit here; `fathom_build_info` reports it.
    println!("cargo:rerun-if-env-changed=FATHOM_COMMIT");
    let commit = env::var("FATHOM_COMMIT").unwrap_or_default();
    let commit = if !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        commit
    } else {
        "unknown".to_owned()
    };
    println!("cargo:rustc-env=FATHOM_BUILD_COMMIT={commit}");
    for (key, variable) in [
        ("FATHOM_BUILD_TARGET", "TARGET"),
        ("FATHOM_BUILD_PROFILE", "PROFILE"),
    ] {
        println!(
            "cargo:rustc-env={key}={}",
            env::var(variable).unwrap_or_default()
        );
    }

    // A panic becomes a status at the C boundary; with `abort` it would end the host's process.
    let panic = env::var("CARGO_CFG_PANIC").unwrap_or_default();
    assert!(
        panic == "unwind",
        "fathom must be built with panic = \"unwind\", not \"{panic}\": a panic would end the host's process"
    );

    match env::var("CARGO_CFG_TARGET_OS").unwrap_or_default().as_str() {
        "linux" | "android" | "freebsd" => {
            // Cargo sets no SONAME, and build systems then record full paths.
            link_arg(&format!("-Wl,-soname,libfathom.so.{ABI_VERSION}"));
            // Thread-local destructors run after `dlclose` unmapped them, unless it never does.
            link_arg("-Wl,-z,nodelete");
            // rustc exports every `#[no_mangle]` function of every dependency.
            link_arg("-Wl,--exclude-libs,ALL");
        }
        "macos" => link_arg(&format!(
            "-Wl,-install_name,@rpath/libfathom.{ABI_VERSION}.dylib"
        )),
        _ => {}
    }
}

fn link_arg(argument: &str) {
    println!("cargo:rustc-cdylib-link-arg={argument}");
}

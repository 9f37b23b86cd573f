//! The official Python SDKs of OpenAI and Anthropic talk to a small server over the library, and must find in every
//! answer what the library put there. Each script checks one protocol, scenario by scenario.

#[path = "../cabi/mod.rs"]
mod cabi;
#[path = "../answers/host.rs"]
mod host;
mod server;

use std::path::PathBuf;
use std::process::Command;

use server::Server;

const INSTALL: &str = "make sdk-venv";

/// A Python that has the SDKs in the versions that the scripts are written for, or a skip.
fn python() -> Option<PathBuf> {
    let own = cabi::root().join("target/sdk-venv/bin/python");
    let python = match std::env::var_os("FATHOM_SDK_PYTHON") {
        Some(path) => path.into(),
        None if own.exists() => own,
        None => "python3".into(),
    };
    let wanted = include_str!("requirements.txt");
    const VERSIONS: &str = "import openai, anthropic; print(f'openai=={openai.__version__}\\nanthropic=={anthropic.__version__}')";
    let found = Command::new(&python).args(["-c", VERSIONS]).output();
    let reason = match found {
        Err(error) => format!("{}: {error}", python.display()),
        Ok(output) if !output.status.success() => format!("{} lacks the SDKs", python.display()),
        Ok(output) => {
            let found = String::from_utf8_lossy(&output.stdout);
            if found == wanted {
                return Some(python);
            }
            format!(
                "{} has {}",
                python.display(),
                found.trim().replace('\n', " and ")
            )
        }
    };
    let wanted = wanted.trim().replace('\n', " and ");
    cabi::skip(&format!("{reason}; {wanted} are needed: {INSTALL}"));
    None
}

/// Runs a script, and reports the checks that failed by their names.
fn checks(script: &str, least: usize) {
    let Some(python) = python() else { return };
    let server = Server::start();
    let output = Command::new(python)
        .arg(cabi::root().join("tests/sdk").join(script))
        .arg(server.url())
        // Nothing of the machine's own set-up changes what is tested.
        .env_clear()
        .envs(
            ["PATH", "HOME", "LD_LIBRARY_PATH"]
                .into_iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .env("NO_PROXY", "*")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("it started a moment ago");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    print!("{text}");
    let failed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("FAILED "))
        .collect();
    assert!(failed.is_empty(), "{script}: {failed:?}\n{text}{errors}");
    assert!(
        output.status.success(),
        "{script}: {}\n{text}{errors}",
        output.status
    );
    let passed = text.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(
        passed >= least,
        "{script} made {passed} checks only\n{text}{errors}"
    );
}

#[test]
fn the_sdk_of_openai_understands_chat_completions() {
    checks("chat.py", 13);
}

#[test]
fn the_sdk_of_openai_understands_responses() {
    checks("responses.py", 12);
}

#[test]
fn the_sdk_of_anthropic_understands_messages() {
    checks("messages.py", 13);
}

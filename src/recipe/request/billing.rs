//! The line that some clients put before their system prompt for accounting. It is no part of the prompt.

const HEADER: &str = "x-anthropic-billing-header";

/// Whether `text` begins with the line, its name written in `any_case`.
pub(super) fn has_header(text: &str, any_case: bool) -> bool {
    let start = text.as_bytes().get(..HEADER.len());
    start.is_some_and(|start| {
        start == HEADER.as_bytes() || any_case && start.eq_ignore_ascii_case(HEADER.as_bytes())
    })
}

/// What is left of `text` without the line: the rest from its end, or from the usual greeting where that
/// comes first. Always an end of `text`.
pub(super) fn without_header(text: &str, any_case: bool) -> &str {
    if !has_header(text, any_case) {
        return text;
    }
    let line = text.find('\n');
    let greeting = text.find("You are");
    match line.into_iter().chain(greeting).min() {
        Some(cut) => text[cut..].trim_start(),
        None => "",
    }
}

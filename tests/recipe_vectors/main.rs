//! Every vector of requests, outputs, tokenizer, images and budgets through the C functions, as a host calls them.
//!
//! | vectors | through C | on the Rust API alone |
//! |---|---|---|
//! | 877 requests | 877 | |
//! | 913 outputs, each in both recoveries | 910 | 3: log-probabilities of another number than the ids |
//! | 388 texts | 388 | |
//! | 260 image sizes | 260 | |
//! | 600 budgets | 540 | 60: prompts of 4294967295 tokens (`tests/recipe_chat.rs`) |

mod budgets;
mod handles;
mod images;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
mod requests;
mod streams;
mod tokenizer;

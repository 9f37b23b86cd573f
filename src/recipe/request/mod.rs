//! One file a protocol: JSON is parsed, validated and converted into a conversation and options.

pub mod chat;

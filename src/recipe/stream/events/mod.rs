//! Parsed output becomes protocol events: one file a protocol.

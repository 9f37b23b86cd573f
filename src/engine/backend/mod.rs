//! The seam between models and hardware.
pub mod canary;

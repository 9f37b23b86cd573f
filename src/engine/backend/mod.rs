//! The seam between models and hardware.

//! From a directory to a model: the one place that knows which backends are built in.
//!
//! In: the options. Out: a model with its pools, and what to report of it. Blocks as long as reading takes.

#![forbid(unsafe_code)]

use serde_json::Value;

use super::error::{Code, Error};
use super::model::{Model, ModelLimits};
use super::options::{EngineOptions, Tuning};

/// What is known of a loaded, or planned, model besides the model.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of paged state.
    pub kv_bytes: u64,
    /// Devices in use.
    pub device_count: u32,
    /// The memory plan, as it stands under `plan` in the metrics.
    pub plan: Value,
    /// The directory's name.
    pub model_name: String,
    /// Sizes; after a dry run those the plan gives, if it fits.
    pub limits: Option<ModelLimits>,
}

/// Loads the model that the options name. `progress` gets a fraction and a phase at most ten times a second and
/// answers `false` to stop with [`Code::Cancelled`].
pub(super) fn load_model(
    options: &EngineOptions,
    _tuning: &Tuning,
    _progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<(Box<dyn Model>, LoadReport), Error> {
    Err(none_built_in(options))
}

/// The memory plan of the model that the options name; reads headers only.
pub(super) fn plan_model(options: &EngineOptions, _tuning: &Tuning) -> Result<LoadReport, Error> {
    Err(none_built_in(options))
}

fn none_built_in(options: &EngineOptions) -> Error {
    Error::new(
        Code::Unsupported,
        "device",
        format!(
            "no backend is built in, \"{}\" was asked for",
            options.device
        ),
    )
}

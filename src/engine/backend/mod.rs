//! The seam between models and hardware.
//!
//! [`Backend`] is a small set of coarse operations over rows with positions; the models in
//! [`super::model`] are written once over it. Two of its implementations share host memory and the
//! shape of every operation ([`host`]) and differ in their inner loops: [`reference`] is plain and
//! trusted by tests, [`cpu`] uses vector units and threads.

pub mod cpu;
pub mod host;
pub mod reference;

//! Operations on host memory, written once over [`kernels::Kernels`].

pub mod kernels;
pub mod matrix;
pub mod numbers;

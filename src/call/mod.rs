//! Request in, protocol events out.

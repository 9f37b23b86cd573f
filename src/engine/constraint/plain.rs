//! The slow matcher that tests trust.

//! Which work goes into the next step: a pure function.

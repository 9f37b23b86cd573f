//! Inner loops with vector units and threads.

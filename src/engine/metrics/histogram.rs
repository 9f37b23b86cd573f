//! How often a quantity was how large: counts by fixed bounds, without a lock and without allocating.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bounds of times, in microseconds: 1, 2.5 and 5 in each decade.
const TIMES: [u64; 20] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
];
/// Bounds of short times, in microseconds: what the engine does beside the model.
const SHORT_TIMES: [u64; 14] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 100_000,
];
/// Bounds of counts of rows.
const ROWS: [u64; 14] = [
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192,
];

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Time,
    ShortTime,
    Rows,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Histogram {
    quantity: Quantity,
    /// One for each bound, and one for what is larger than all.
    counts: Box<[AtomicU64]>,
    /// Microseconds, or rows.
    sum: AtomicU64,
}

impl Histogram {
    /// Of times from a tenth of a millisecond to minutes.
    pub(crate) fn of_times() -> Self {
        Self::new(Quantity::Time)
    }

    /// Of times from a microsecond to a tenth of a second.
    pub(crate) fn of_short_times() -> Self {
        Self::new(Quantity::ShortTime)
    }

    /// Of rows.
    pub(crate) fn of_rows() -> Self {
        Self::new(Quantity::Rows)
    }

    fn new(quantity: Quantity) -> Self {
        let mut histogram = Self {
            quantity,
            counts: Box::default(),
            sum: AtomicU64::new(0),
        };
        let buckets = histogram.bounds().len() + 1;
        histogram.counts = (0..buckets).map(|_| AtomicU64::new(0)).collect();
        histogram
    }

    fn bounds(&self) -> &'static [u64] {
        match self.quantity {
            Quantity::Time => &TIMES,
            Quantity::ShortTime => &SHORT_TIMES,
            Quantity::Rows => &ROWS,
        }
    }

    /// Counts a time.
    pub(crate) fn time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts a number of microseconds, or of rows.
    pub(crate) fn add(&self, value: u64) {
        let bucket = self.bounds().partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Upper bounds with how many are not larger, the last without a bound; and the sum. In seconds, or rows.
    pub(crate) fn read(&self) -> (Vec<(Option<f64>, u64)>, f64) {
        let scale = match self.quantity {
            Quantity::Time | Quantity::ShortTime => 1e-6,
            Quantity::Rows => 1.0,
        };
        let bounds = self
            .bounds()
            .iter()
            .map(|bound| Some(*bound as f64 * scale));
        let mut total = 0;
        let buckets = bounds
            .chain([None])
            .zip(&self.counts)
            .map(|(bound, count)| {
                total += count.load(Relaxed);
                (bound, total)
            });
        (buckets.collect(), self.sum.load(Relaxed) as f64 * scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_every_bound_that_is_not_smaller() {
        let rows = Histogram::of_rows();
        for value in [1, 2, 3, 9_000] {
            rows.add(value);
        }
        let (buckets, sum) = rows.read();
        assert_eq!(
            buckets[..3],
            [(Some(1.0), 1), (Some(2.0), 2), (Some(4.0), 3)]
        );
        assert_eq!(buckets[buckets.len() - 2..], [(Some(8192.0), 3), (None, 4)]);
        assert_eq!(sum, 9_006.0);
    }

    #[test]
    fn times_are_told_in_seconds() {
        let times = Histogram::of_times();
        times.time(Duration::from_millis(3));
        let (buckets, sum) = times.read();
        assert!(buckets.contains(&(Some(0.0025), 0)) && buckets.contains(&(Some(0.005), 1)));
        assert_eq!(sum, 0.003);
    }
}

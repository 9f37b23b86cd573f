//! Completion queues: events out, wake-ups, acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use super::error::Error;
use super::request::Event;

/// How a queue wakes its consumer.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    /// Never wake more often; 0 = each engine step.
    pub wake_interval_us: u32,
}

/// Where events of requests wait for their consumer. A cheap handle: clones are the same queue.
#[derive(Clone, Debug)]
pub struct Queue {
    _shared: Arc<()>,
}

impl Queue {
    /// An empty queue.
    pub fn new(_options: QueueOptions) -> Result<Self, Error> {
        unimplemented!()
    }

    /// Appends what is ready to `out`; waits for something up to `timeout` (`None`: without limit), for
    /// [`Self::wake`], or for [`Self::close`]. Runs the adapters of the requests on the calling thread.
    pub fn poll(&self, _out: &mut Vec<Event>, _timeout: Option<Duration>) -> Result<(), Error> {
        unimplemented!()
    }

    /// Ends one wait early. Never blocks.
    pub fn wake(&self) {
        unimplemented!()
    }

    /// A descriptor that is readable exactly while something waits; owned by the queue.
    pub fn fd(&self) -> Result<i32, Error> {
        unimplemented!()
    }

    /// Calls `callback` each time the queue goes from empty to not empty; `None` removes it and returns
    /// once no call is running.
    pub fn on_ready(&self, _callback: Option<Box<dyn Fn() + Send + Sync>>) {
        unimplemented!()
    }

    /// Discards what waits and whatever comes later, and cancels the requests that deliver here.
    pub fn close(&self) {
        unimplemented!()
    }
}

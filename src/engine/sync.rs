//! What the engine needs of the operating system around threads: a descriptor that wakes event loops,
//! and threads that leave the host's signals alone.
//!
//! The one file outside `capi/`, `engine/backend/` and `engine/weights/` with unsafe code: each block is
//! one libc call behind a safe signature. Cost: one system call a function.

use std::cell::Cell;
use std::thread::JoinHandle;

use super::error::{Code, Error};

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread was started by [`spawn`]; callbacks and jobs of the host run on such.
pub(crate) fn on_library_thread() -> bool {
    OURS.get()
}

/// Starts a thread of the library: named, and without the host's asynchronous signals. They are blocked
/// before the thread exists, so no handler of the host ever runs on it.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    spawn_with_stack(name, STACK, body)
}

/// What std gives a thread.
pub(crate) const STACK: usize = 2 << 20;

/// The same with room for deep recursion. Memory is used as far as the stack has ever grown.
pub(crate) fn spawn_with_stack(
    name: &str,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let _blocked = signals::Blocked::new();
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(stack_bytes)
        .spawn(move || {
            OURS.set(true);
            body();
        })
        .map_err(|e| {
            Error::new(
                Code::OutOfHostMemory,
                name,
                format!("cannot start the thread \"{name}\": {e}"),
            )
        })
}

#[cfg(unix)]
mod signals {
    #![expect(
        unsafe_code,
        reason = "the signal mask of a thread has no safe interface"
    )]

    use std::mem::MaybeUninit;

    /// Faults of the thread itself. Blocking them would turn a crash report into silent death.
    const SYNCHRONOUS: [libc::c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGABRT,
    ];

    /// Blocks all asynchronous signals of this thread while it lives; new threads inherit the mask.
    pub(super) struct Blocked {
        before: Option<libc::sigset_t>,
    }

    impl Blocked {
        pub(super) fn new() -> Self {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            let mut before = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: sigfillset writes all of the set it gets, which is ours; the set is initialised
            // when sigdelset and pthread_sigmask read it; `before` is written when the call answers 0.
            let before = unsafe {
                libc::sigfillset(all.as_mut_ptr());
                for signal in SYNCHRONOUS {
                    libc::sigdelset(all.as_mut_ptr(), signal);
                }
                (libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0)
                    .then(|| before.assume_init())
            };
            Self { before }
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                // SAFETY: `before` is a set that pthread_sigmask wrote; no old mask is asked for.
                unsafe {
                    libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut());
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a null new mask changes nothing and the current mask is written to `now`, which is
        // read only afterwards.
        unsafe {
            assert_eq!(
                libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr()),
                0
            );
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }
}

#[cfg(not(unix))]
mod signals {
    /// There are no asynchronous signals to block.
    pub(super) struct Blocked;

    impl Blocked {
        pub(super) fn new() -> Self {
            Self
        }
    }
}

/// A descriptor that is readable while it is raised. Close-on-exec; closed on drop.
#[cfg(target_os = "linux")]
pub(crate) type Flag = event::EventFlag;
#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) type Flag = pipe::PipeFlag;

#[cfg(target_os = "linux")]
mod event {
    #![expect(unsafe_code, reason = "eventfd has no safe interface")]

    use std::fs::File;
    use std::io::{self, Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd};

    /// One eventfd: half the descriptors of a pipe, and clearing is one read.
    #[derive(Debug)]
    pub(crate) struct EventFlag(File);

    impl EventFlag {
        pub(crate) fn new() -> io::Result<Self> {
            // SAFETY: eventfd takes two numbers and touches no memory of ours.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: a new descriptor that nobody else owns.
            Ok(Self(unsafe { File::from_raw_fd(fd) }))
        }

        pub(crate) fn fd(&self) -> i32 {
            self.0.as_raw_fd()
        }

        /// Makes it readable. Cannot fail: the counter has room for 2^64 raises without a clear.
        pub(crate) fn raise(&self) {
            let _ = (&self.0).write(&1u64.to_ne_bytes());
        }

        /// Makes it unreadable; not raised is fine.
        pub(crate) fn clear(&self) {
            let _ = (&self.0).read(&mut [0u8; 8]);
        }
    }
}

#[cfg(all(unix, any(test, not(target_os = "linux"))))]
mod pipe {
    #![expect(
        unsafe_code,
        reason = "flags of a pipe's descriptors have no safe interface"
    )]

    use std::io::{self, PipeReader, PipeWriter, Read, Write};
    use std::os::fd::{AsRawFd, RawFd};

    /// One byte in a pipe, or none.
    #[derive(Debug)]
    pub(crate) struct PipeFlag {
        reader: PipeReader,
        writer: PipeWriter,
    }

    impl PipeFlag {
        pub(crate) fn new() -> io::Result<Self> {
            // std makes both ends close-on-exec.
            let (reader, writer) = io::pipe()?;
            set_nonblocking(reader.as_raw_fd())?;
            set_nonblocking(writer.as_raw_fd())?;
            Ok(Self { reader, writer })
        }

        pub(crate) fn fd(&self) -> i32 {
            self.reader.as_raw_fd()
        }

        /// Makes it readable. A full pipe is readable already.
        pub(crate) fn raise(&self) {
            let _ = (&self.writer).write(&[1]);
        }

        /// Makes it unreadable; not raised is fine.
        pub(crate) fn clear(&self) {
            let mut bytes = [0u8; 64];
            while matches!((&self.reader).read(&mut bytes), Ok(n) if n > 0) {}
        }
    }

    fn set_nonblocking(fd: RawFd) -> io::Result<()> {
        // SAFETY: the caller holds the descriptor open; F_GETFL touches no memory of ours.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: as above, and F_SETFL takes a number.
        if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// What an event loop would see, for tests.
#[cfg(all(test, unix))]
#[expect(unsafe_code, reason = "poll(2) looks at a descriptor")]
pub(crate) fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd of ours, and its count.
    let n = unsafe { libc::poll(&mut poll, 1, 0) };
    n == 1 && poll.revents & libc::POLLIN != 0
}

#[cfg(all(test, unix))]
mod tests {
    #![expect(unsafe_code, reason = "fcntl(2) looks at descriptors")]

    use super::*;

    fn is_close_on_exec(fd: i32) -> bool {
        // SAFETY: F_GETFD touches no memory of ours.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        flags >= 0 && flags & libc::FD_CLOEXEC != 0
    }

    #[test]
    fn a_flag_is_readable_exactly_while_raised() {
        let flag = Flag::new().unwrap();
        assert!(is_close_on_exec(flag.fd()));
        assert!(!is_readable(flag.fd()));
        flag.raise();
        flag.raise();
        assert!(is_readable(flag.fd()));
        flag.clear();
        assert!(!is_readable(flag.fd()));
        flag.clear();
    }

    #[test]
    fn the_pipe_does_what_the_event_descriptor_does() {
        let flag = pipe::PipeFlag::new().unwrap();
        assert!(is_close_on_exec(flag.fd()));
        assert!(!is_readable(flag.fd()));
        flag.raise();
        flag.raise();
        assert!(is_readable(flag.fd()));
        flag.clear();
        assert!(!is_readable(flag.fd()));
        flag.clear();
    }

    #[test]
    fn our_threads_block_asynchronous_signals_and_the_host_keeps_its_mask() {
        let before = signals::is_blocked(libc::SIGUSR1);
        let (send, receive) = std::sync::mpsc::channel();
        let thread = spawn("fathom-test", move || {
            let mask =
                [libc::SIGUSR1, libc::SIGURG, libc::SIGINT, libc::SIGSEGV].map(signals::is_blocked);
            let name = std::thread::current().name().map(str::to_owned);
            send.send((mask, name, on_library_thread())).unwrap();
        })
        .unwrap();
        let (mask, name, ours) = receive.recv().unwrap();
        thread.join().unwrap();
        assert_eq!(mask, [true, true, true, false]);
        assert_eq!(name.as_deref(), Some("fathom-test"));
        assert!(ours);
        assert!(!on_library_thread());
        assert_eq!(signals::is_blocked(libc::SIGUSR1), before);
    }
}

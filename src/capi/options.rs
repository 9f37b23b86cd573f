//! Rules for structs that say their size (`struct_size` first): they only grow at the end.
//!
//! A caller's struct may be shorter than ours (an older binary: the rest keeps its defaults) or longer (a
//! newer one: what we do not know must be zero, or it wants something this library lacks).

use std::mem::MaybeUninit;

use super::error::Failed;

/// A struct larger than this is a mistake, not a newer version.
const MAX_STRUCT_SIZE: usize = 4096;

/// A C struct that starts with `struct_size`.
///
/// # Safety
///
/// `repr(C)` without padding, `struct_size: usize` first, and every bit pattern of every other field is a
/// value (integers, floats, raw pointers, nullable function pointers).
pub(crate) unsafe trait Versioned: Copy {
    /// As in the header.
    const NAME: &'static str;
    /// What fields beyond the caller's size are; `struct_size` is ours.
    fn defaults() -> Self;
}

/// Zeroes the caller's `struct_size` bytes, then writes the size and the defaults that fit.
///
/// # Safety
///
/// `target` is NULL or points to `struct_size` writable bytes.
pub(crate) unsafe fn init<T: Versioned>(target: *mut T, struct_size: usize) {
    if target.is_null() || !(size_of::<usize>()..=MAX_STRUCT_SIZE).contains(&struct_size) {
        return;
    }
    let defaults = T::defaults();
    let known = struct_size.min(size_of::<T>());
    // SAFETY: the caller's promise covers `struct_size` bytes, of which the first `known` are copied from
    // a value of at least that size; `usize` is the first field.
    unsafe {
        target.cast::<u8>().write_bytes(0, struct_size);
        target
            .cast::<u8>()
            .copy_from_nonoverlapping((&raw const defaults).cast(), known);
        target.cast::<usize>().write_unaligned(struct_size);
    }
}

/// Reads a caller's struct; NULL is all defaults.
///
/// # Safety
///
/// `source` is NULL or points to as many readable bytes as its first field says.
pub(crate) unsafe fn read<T: Versioned>(source: *const T) -> Result<T, Failed> {
    if source.is_null() {
        return Ok(T::defaults());
    }
    // SAFETY: the caller's promise; every such struct starts with its size.
    let struct_size = unsafe { size::<T>(source.cast()) }?;
    let known = struct_size.min(size_of::<T>());
    let mut value = MaybeUninit::new(T::defaults());
    // SAFETY: `known` bytes are readable by the caller's promise and fit `value`, whose type takes any
    // bit pattern (`Versioned`); the rest keeps its defaults.
    let value = unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(source.cast(), known);
        value.assume_init()
    };
    for place in known..struct_size {
        // SAFETY: inside the size that the caller promised.
        if unsafe { source.cast::<u8>().add(place).read() } != 0 {
            return Err(Failed::abi(
                "struct_size",
                format!(
                    "byte {place} of {} is set, and this library knows only {}",
                    T::NAME,
                    size_of::<T>()
                ),
            ));
        }
    }
    Ok(value)
}

/// Copies `value` into a caller's struct, as far as it reaches; its `struct_size` stays.
///
/// # Safety
///
/// `target` is NULL or points to as many writable bytes as its first field says.
pub(crate) unsafe fn fill<T: Versioned>(
    target: *mut T,
    argument: &'static str,
    value: &T,
) -> Result<(), Failed> {
    if target.is_null() {
        return Err(Failed::argument(argument, format!("{argument} is NULL")));
    }
    // SAFETY: the caller's promise; every such struct starts with its size.
    let struct_size = unsafe { size::<T>(target.cast_const().cast()) }?;
    let known = struct_size.min(size_of::<T>());
    // SAFETY: `known` bytes are writable by the caller's promise and readable in `value`.
    unsafe {
        target
            .cast::<u8>()
            .copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), known);
        target.cast::<usize>().write_unaligned(struct_size);
    }
    Ok(())
}

/// # Safety
///
/// `source` points to a readable `usize`.
unsafe fn size<T: Versioned>(source: *const usize) -> Result<usize, Failed> {
    // SAFETY: the caller's promise; C callers align their structs, and unaligned reading costs nothing.
    let struct_size = unsafe { source.read_unaligned() };
    if !(size_of::<usize>()..=MAX_STRUCT_SIZE).contains(&struct_size) {
        return Err(Failed::abi(
            "struct_size",
            format!(
                "struct_size {struct_size} of {} is not the size of any version of it",
                T::NAME
            ),
        ));
    }
    Ok(struct_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::types::FATHOM_ERR_ABI;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Example {
        struct_size: usize,
        first: u64,
        second: f64,
    }
    // SAFETY: `repr(C)`, no padding, numbers only.
    unsafe impl Versioned for Example {
        const NAME: &'static str = "example";
        fn defaults() -> Self {
            Self {
                struct_size: size_of::<Self>(),
                first: 0,
                second: 1.5,
            }
        }
    }

    #[repr(C)]
    struct Longer {
        known: Example,
        tail: [u64; 2],
    }

    fn longer(tail: [u64; 2]) -> Longer {
        Longer {
            known: Example {
                struct_size: size_of::<Longer>(),
                first: 7,
                second: 2.0,
            },
            tail,
        }
    }

    #[test]
    fn a_newer_caller_is_served_unless_it_sets_what_we_do_not_know() {
        let good = longer([0, 0]);
        // SAFETY: the size is that of the whole.
        let read_back = unsafe { read((&raw const good).cast::<Example>()) }.unwrap();
        assert_eq!((read_back.first, read_back.second), (7, 2.0));
        let bad = longer([0, 1 << 56]);
        // SAFETY: as above.
        let refused = unsafe { read((&raw const bad).cast::<Example>()) }.unwrap_err();
        assert_eq!(refused.status, FATHOM_ERR_ABI);
    }

    #[test]
    fn an_older_caller_gets_defaults_and_is_never_written_past_its_end() {
        let mut short = [16_usize, 9, 0xABCD];
        // SAFETY: 16 bytes are there.
        let value = unsafe { read(short.as_ptr().cast::<Example>()) }.unwrap();
        assert_eq!((value.first, value.second), (9, 1.5));
        // SAFETY: as above.
        unsafe {
            fill(
                short.as_mut_ptr().cast(),
                "out",
                &Example {
                    struct_size: 24,
                    first: 3,
                    second: 4.0,
                },
            )
        }
        .unwrap();
        assert_eq!(short, [16, 3, 0xABCD]);
        // SAFETY: as above.
        unsafe { init(short.as_mut_ptr().cast::<Example>(), 16) };
        assert_eq!(short, [16, 0, 0xABCD]);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for size in [0_usize, 7, 5000, usize::MAX] {
            let value = [size, 0, 0];
            // SAFETY: nothing beyond the first field is read for such a size.
            let refused = unsafe { read(value.as_ptr().cast::<Example>()) }.unwrap_err();
            assert_eq!(refused.status, FATHOM_ERR_ABI, "{size}");
        }
    }
}

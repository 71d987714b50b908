//! Secrets in the memory that other processes read as `/proc/PID/cmdline` and `/proc/PID/environ`.
//!
//! The kernel copies the arguments and variables of a program to its stack and shows that memory, not what the program
//! made of it. Forked processes inherit what is left there.

use std::ops::Range;

use crate::wait::read_small;

/// What a secret is overwritten with.
const STAR: u8 = b'*';

/// Overwrites the value of each `--flag VALUE` and `--flag=VALUE` in this process's command line. Arguments that were
/// read before stay intact; `std::env::args` returns the overwritten ones afterwards.
pub fn hide_argument(flag: &str) {
    let mut is_value = false;
    overwrite(45, |word| {
        if std::mem::replace(&mut is_value, word == flag.as_bytes()) {
            return Some(0);
        }
        value_in(word, flag)
    });
}

/// Overwrites the value of a variable in this process's environment, and so in that of programs that it starts.
pub fn hide_variable(name: &str) {
    overwrite(47, |word| value_in(word, name));
}

/// The position of the value in `name=value`.
fn value_in(word: &[u8], name: &str) -> Option<usize> {
    word.strip_prefix(name.as_bytes())?.starts_with(b"=").then(|| name.len() + 1)
}

/// Overwrites each word from the position that `secret` returns. `field` is the first of the two fields after the name
/// in `/proc/self/stat` that hold the addresses of the words.
fn overwrite(field: usize, mut secret: impl FnMut(&[u8]) -> Option<usize>) {
    let Some(range) = memory(field) else { return };
    // SAFETY: the kernel put these bytes on the stack for this process before it began, and nothing else is there. They
    // are writable, and no reference to them exists: the standard library copies arguments and variables when asked.
    let bytes = unsafe { std::slice::from_raw_parts_mut(range.start as *mut u8, range.len()) };
    for word in bytes.split_mut(|byte| *byte == 0) {
        if let Some(from) = secret(word) {
            word[from..].fill(STAR);
        }
    }
}

fn memory(field: usize) -> Option<Range<usize>> {
    let stat = read_small("/proc/self/stat")?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(field).map(str::parse);
    let range = fields.next()?.ok()?..fields.next()?.ok()?;
    (range.start != 0 && range.start < range.end).then_some(range)
}

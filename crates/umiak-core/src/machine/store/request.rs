//! What a client of a store asks for. Requests borrow from the bytes that were received.

/// A client of a store; the caller chooses the number and may use it again after
/// [`Store::forget`](super::Store::forget).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// A request of the TCPStore protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first message of every connection; it has no effect here.
    Validate,
    Set {
        key: &'a [u8],
        value: &'a [u8],
    },
    CompareSet {
        key: &'a [u8],
        expected: &'a [u8],
        desired: &'a [u8],
    },
    Get {
        key: &'a [u8],
    },
    Add {
        key: &'a [u8],
        delta: i64,
    },
    Check(Strings<'a>),
    Wait(Strings<'a>),
    NumKeys,
    Delete {
        key: &'a [u8],
    },
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    MultiGet(Strings<'a>),
    /// Keys and values in turn.
    MultiSet(Strings<'a>),
    CancelWait,
    Ping(u32),
    QueuePush {
        key: &'a [u8],
        value: &'a [u8],
    },
    QueuePop {
        key: &'a [u8],
    },
    QueueLen {
        key: &'a [u8],
    },
    ListKeys,
    Barrier {
        key: &'a [u8],
        size: i64,
    },
}

/// Length of the number before each string.
const HEAD: usize = 8;

/// Several strings as they stand in a request: each is preceded by its length, a little-endian `u64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strings<'a>(&'a [u8]);

impl<'a> Strings<'a> {
    /// The bytes must be whole strings; a string that is cut off ends the list.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The strings, each with the offset of its end.
    pub(super) fn with_ends(self) -> impl Iterator<Item = (&'a [u8], usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (string, _) = split(self.0.get(at..)?)?;
            at += HEAD + string.len();
            Some((string, at))
        })
    }

    /// The strings in pairs.
    pub(super) fn pairs(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut strings = self.into_iter();
        std::iter::from_fn(move || Some((strings.next()?, strings.next()?)))
    }
}

impl<'a> IntoIterator for Strings<'a> {
    type Item = &'a [u8];
    type IntoIter = StringsIter<'a>;

    fn into_iter(self) -> StringsIter<'a> {
        StringsIter(self.0)
    }
}

/// The strings of [`Strings`].
#[derive(Debug, Clone)]
pub struct StringsIter<'a>(&'a [u8]);

impl<'a> Iterator for StringsIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (string, rest) = split(self.0)?;
        self.0 = rest;
        Some(string)
    }
}

/// The first string, and what follows it.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<HEAD>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

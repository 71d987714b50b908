//! Limits on texts and lists in messages. Without a token any process that knows the job id can send a message, and parts
//! of it are shown on consoles.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

use crate::model::MAX_NODES;

/// Bytes of a host name; the kernel's limit is 64.
pub(super) const HOST: usize = 255;
/// Bytes of a sentence or a path.
pub(super) const TEXT: usize = 8192;

/// The text without what exceeds `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A text of at most `MAX` bytes, for `#[serde(with)]`: cut when it is sent, refused when it is received.
pub(super) struct Bounded<const MAX: usize>;

impl<const MAX: usize> Bounded<MAX> {
    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(cut(text, MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(Self)
    }
}

impl<const MAX: usize> Visitor<'_> for Bounded<MAX> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a text of at most {MAX} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() > MAX { Err(E::invalid_length(text.len(), &self)) } else { Ok(text.to_owned()) }
    }
}

/// A [`Bounded`] name or path. It is shown inside a line, where a line feed would begin one that passes for ours: control
/// characters are replaced, on both sides.
pub(super) struct OneLine<const MAX: usize>;

impl<const MAX: usize> OneLine<MAX> {
    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        Bounded::<MAX>::serialize(&one_line(text), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        let text = Bounded::<MAX>::deserialize(deserializer)?;
        Ok(match one_line(&text) {
            // A start of 1 000 nodes has as many names.
            Cow::Borrowed(_) => text,
            Cow::Owned(cleaned) => cleaned,
        })
    }
}

fn one_line(text: &str) -> Cow<'_, str> {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if text.contains(is_odd) { Cow::Owned(text.replace(is_odd, "?")) } else { Cow::Borrowed(text) }
}

/// Reads at most [`MAX_NODES`] addresses.
pub(super) fn listed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    deserializer.deserialize_seq(Addresses)
}

struct Addresses;

impl<'de> Visitor<'de> for Addresses {
    type Value = Vec<IpAddr>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at most {MAX_NODES} addresses")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<IpAddr>, A::Error> {
        let mut list = Vec::new();
        while let Some(address) = sequence.next_element()? {
            if list.len() == MAX_NODES as usize {
                return Err(A::Error::invalid_length(list.len() + 1, &self));
            }
            list.push(address);
        }
        Ok(list)
    }
}

//! The typed values of the flags, and the source of each.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use super::flags::{self, Flag, ValueKind};
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse::{self, Given};
use crate::formats::units;
use crate::model::Generation;
use crate::quote::python;

/// The given values, by the attribute of the flag. Missing flags have their defaults.
#[derive(Debug, Clone)]
pub(super) struct Arguments {
    given: BTreeMap<&'static str, Setting>,
    table: &'static [Flag],
}

#[derive(Debug, Clone)]
struct Setting {
    value: Value,
    source: Source,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(OsString),
    Int(i64),
    Bool(bool),
}

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The table's spelling of the flag or alias: `--xpus`.
    Flag(&'static str),
    Variable(&'static str),
}

impl Source {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Flag(name) | Self::Variable(name) => name,
        }
    }

    /// A wrong value on the command line is a usage error; a wrong value of a variable has its own code.
    pub(super) fn code(self) -> Code {
        match self {
            Self::Flag(_) => Code::L0001,
            Self::Variable(_) => Code::L0009,
        }
    }
}

impl Arguments {
    /// No flag is given yet.
    pub(super) fn of(table: &'static [Flag]) -> Self {
        Self { given: BTreeMap::new(), table }
    }

    fn flag(&self, attribute: &str) -> Option<&'static Flag> {
        flags::by_attribute(self.table, attribute)
    }

    /// Sets a flag of the command line. The last one wins.
    pub(super) fn give(&mut self, flag: &'static Flag, given: &Given) -> Result<(), Diagnostic> {
        if flag.value == ValueKind::Count {
            // The letters of `-vv`; `--verbose` is one.
            let times = if given.name.starts_with("--") { 1 } else { given.token.len() as i64 - 1 };
            let before = self.int(flag.attribute).unwrap_or(0);
            self.put(flag.attribute, Value::Int(before + times), Source::Flag(given.name));
            return Ok(());
        }
        let text = given.value.as_deref().unwrap_or_default();
        self.set(flag, Source::Flag(given.name), text)
    }

    pub(super) fn set(&mut self, flag: &'static Flag, source: Source, text: &OsStr) -> Result<(), Diagnostic> {
        let value = convert(flag, text).map_err(|expected| wrong(flag, source, &expected, text))?;
        self.put(flag.attribute, value, source);
        Ok(())
    }

    /// Sets a value that is not the text of the flag, as Paddle's plugins do.
    pub(super) fn put(&mut self, attribute: &'static str, value: Value, source: Source) {
        self.given.insert(attribute, Setting { value, source });
    }

    pub(super) fn clear(&mut self, attribute: &str) {
        self.given.remove(attribute);
    }

    fn setting(&self, attribute: &str) -> Option<&Setting> {
        // The flags that umiak adds are not all in every table.
        debug_assert!(
            self.flag(attribute).or_else(|| flags::by_attribute(flags::FLAGS, attribute)).is_some(),
            "no flag sets `{attribute}`"
        );
        self.given.get(attribute)
    }

    pub(super) fn source(&self, attribute: &str) -> Option<Source> {
        self.setting(attribute).map(|setting| setting.source)
    }

    /// Its name on the command line or in the environment, for messages.
    pub(super) fn name(&self, attribute: &str) -> &'static str {
        self.source(attribute)
            .map(Source::name)
            .or_else(|| self.flag(attribute).map(|flag| flag.name))
            .unwrap_or_default()
    }

    /// The error for an invalid value of `attribute`; if a variable set it, a hint names its flag.
    pub(super) fn wrong_value(&self, attribute: &str, message: impl Into<String>) -> Diagnostic {
        let source = self.source(attribute);
        let error = Diagnostic::error(source.map_or(Code::L0001, Source::code), message);
        match (source, self.flag(attribute)) {
            (Some(Source::Variable(name)), Some(flag)) => error.hint(stands_for(name, flag)),
            _ => error,
        }
    }

    pub(super) fn raw(&self, attribute: &str) -> Option<&OsStr> {
        match self.setting(attribute) {
            Some(Setting { value: Value::Text(text), .. }) => Some(text),
            _ => None,
        }
    }

    /// Text that is given and not empty: an empty text means "not given" everywhere in Paddle.
    pub(super) fn text(&self, attribute: &str) -> Option<&str> {
        self.raw(attribute).and_then(OsStr::to_str).filter(|text| !text.is_empty())
    }

    pub(super) fn int(&self, attribute: &str) -> Option<i64> {
        match self.setting(attribute) {
            Some(Setting { value: Value::Int(number), .. }) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn bool(&self, attribute: &str) -> Option<bool> {
        match self.setting(attribute) {
            Some(Setting { value: Value::Bool(truth), .. }) => Some(*truth),
            _ => None,
        }
    }

    pub(super) fn is_switched_on(&self, attribute: &str) -> bool {
        self.bool(attribute) == Some(true)
    }

    /// True if the value is not 0, empty or false, as in Python.
    pub(super) fn is_set(&self, attribute: &str) -> bool {
        self.setting(attribute).is_some_and(|setting| match &setting.value {
            Value::Text(text) => !text.is_empty(),
            Value::Int(number) => *number != 0,
            Value::Bool(truth) => *truth,
        })
    }

    /// The value as Python prints it; the generation's default if none was given.
    pub(super) fn printed(&self, flag: &Flag, generation: Generation) -> String {
        match self.setting(flag.attribute).map(|setting| &setting.value) {
            None => flag.default_in(generation).to_owned(),
            Some(Value::Text(text)) => text.to_string_lossy().into_owned(),
            Some(Value::Int(number)) => number.to_string(),
            Some(Value::Bool(value)) => python::truth(*value).to_owned(),
        }
    }
}

/// The value, or the expected value in words.
fn convert(flag: &Flag, text: &OsStr) -> Result<Value, String> {
    if flag.value == ValueKind::Path {
        return Ok(Value::Text(text.to_owned()));
    }
    let text = text.to_str().ok_or("UTF-8 text")?;
    let as_text = || Value::Text(text.into());
    match flag.value {
        ValueKind::Text | ValueKind::Path => Ok(as_text()),
        ValueKind::Int | ValueKind::Count => argparse::int(text).map(Value::Int).ok_or("a whole number".to_owned()),
        ValueKind::BoolText => {
            argparse::bool_text(text).map(Value::Bool).ok_or("`true` or `false` (also yes/no, on/off, 1/0)".to_owned())
        }
        ValueKind::AnyTextIsTrue => Ok(Value::Bool(!text.is_empty())),
        ValueKind::Switch | ValueKind::Ignored => Ok(Value::Bool(true)),
        ValueKind::Threads
            if text == "auto" || argparse::int(text).is_some_and(|count| (1..=65_535).contains(&count)) =>
        {
            Ok(as_text())
        }
        ValueKind::Threads => Err("`auto` or a number from 1 up".to_owned()),
        ValueKind::Choice(words) if words.contains(&text) => Ok(as_text()),
        ValueKind::Choice(words) => Err(super::words::either(words)),
        ValueKind::Size if super::own::size(text).is_some() => Ok(as_text()),
        ValueKind::Size => Err("a size of at least 4K, such as `100M` or `1G`".to_owned()),
        ValueKind::Port => {
            super::own::port(text).map(|port| Value::Int(port.get().into())).ok_or("a port from 1 to 65535".to_owned())
        }
        ValueKind::Duration => units::duration(text).map(|_| as_text()).map_err(str::to_owned),
    }
}

fn wrong(flag: &Flag, source: Source, expected: &str, text: &OsStr) -> Diagnostic {
    let mut message = format!("`{}` takes {expected}", source.name());
    if !flag.is_secret() {
        let _ = write!(message, ", not `{}`", text.to_string_lossy());
    }
    let diagnostic = Diagnostic::error(source.code(), message);
    match source {
        // torchrun's words for one process for each device.
        Source::Flag(name)
            if flag.value == ValueKind::Int
                && flag.attribute == "nproc_per_node"
                && ["auto", "cpu", "gpu"].iter().any(|word| text == *word) =>
        {
            diagnostic.hint(format!("leave `{name}` out: one process starts for each device"))
        }
        Source::Flag(_) => diagnostic,
        Source::Variable(name) => diagnostic.hint(stands_for(name, flag)),
    }
}

/// What to do about a variable with a wrong value.
fn stands_for(variable: &str, flag: &Flag) -> String {
    format!("`{variable}` sets `{}`; correct or unset it", flag.name)
}

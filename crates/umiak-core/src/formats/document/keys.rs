//! Tables of the keys that a format has. Readers take the names from them, and reference pages and schemas the rest.

/// A key of a mapping.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: KeyKind,
    /// The default, in words or as written; empty where there is none.
    pub default: &'static str,
    /// One or two sentences, in Markdown.
    pub help: &'static str,
    /// A value that parses, in flow style.
    pub example: &'static str,
}

/// What a value may be.
#[derive(Debug)]
pub enum KeyKind {
    Version,
    /// One line or several.
    Text,
    /// A whole number in these bounds.
    Number(i64, i64),
    Bool,
    Duration,
    Cpu,
    Memory,
    Choice(&'static [&'static str]),
    /// Names to scalars.
    Texts,
    /// Names to scalars or null.
    Params,
    /// A shell command, or a list of arguments.
    Command,
    /// One contract or a list.
    Contracts,
    /// `all`, `never` or a number.
    AllOr,
    /// A number of restarts, or `unlimited`.
    Restart,
    /// The same, or a mapping.
    Restarts(&'static Table),
    /// Role names to roles, and the like.
    Named(&'static Table),
    /// Port names to a count or a mapping.
    Ports(&'static Table),
    /// A role name, a mapping, or a list of them.
    StartAfter(&'static Table),
    Mapping(&'static Table),
    /// A list of mappings.
    Maps(&'static Table),
    /// A name, or a list of names.
    Names,
    /// A list of texts.
    Lines,
    /// Names to whole numbers.
    Counts,
    /// Any content.
    Any,
}

/// A mapping with fixed keys.
#[derive(Debug)]
pub struct Table {
    /// Its heading in the reference.
    pub title: &'static str,
    pub help: &'static str,
    pub keys: &'static [Key],
}

impl Table {
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

/// An entry of a table.
pub(crate) const fn key(
    name: &'static str,
    kind: KeyKind,
    default: &'static str,
    help: &'static str,
    example: &'static str,
) -> Key {
    Key { name, kind, default, help, example }
}

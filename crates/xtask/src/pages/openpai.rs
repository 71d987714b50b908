//! `docs/reference/openpai.md`: every key of a document of OpenPAI, and its table of exits.

use umiak_core::diagnose::pai::{By, ROWS, Row};
use umiak_core::formats::pai::keys;

use super::HEADER;
use super::job::tables;
use crate::markdown::{code, table};

pub(super) fn page() -> String {
    format!("{HEADER}# Documents of OpenPAI\n{INTRODUCTION}{}{EXITS}{}", tables(keys::TABLES), exits())
}

/// The table of exits.
fn exits() -> String {
    let by = |row: &Row| match row.by {
        By::Code(exit) => format!("exit code {exit}"),
        By::Log(pattern) => format!("log: {}", code(pattern)),
        By::CodeAndLog(exit, pattern) => format!("exit code {exit}, log: {}", code(pattern)),
        By::Report(words) => words.to_owned(),
    };
    let row = |row: &Row| {
        [row.code.to_string(), row.name.to_owned(), code(row.kind.word()), row.class.word().to_owned(), by(row)]
    };
    table(&["code", "name", "type", "class", "recognised by"], ROWS.iter().map(row))
}

const INTRODUCTION: &str = "
What umiak does with each key of a job of OpenPAI (`protocolVersion: 2`). The [guide](../guide/openpai.md) describes how to run
such jobs; `umiak convert FILE` prints the [native document](job.md) that does the same.

- Keys that OpenPAI does not accept are errors, with the nearest name. An empty key counts as omitted.
- `<% $parameters.name %>` and the like are filled in commands.
";

const EXITS: &str = "
## Exits

The codes of failed instances, with the class that decides on their repetition. The first row that matches counts. An exit code
of 128 + n stands for signal n. Texts are regular expressions without regard to case, searched in the last 10 MiB of the log.

";

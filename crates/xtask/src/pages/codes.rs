//! `docs/reference/error-codes.md`: the register of error codes, and the signatures.

use std::fmt::Write as _;

use umiak_core::diag::codes::REGISTER;
use umiak_core::diagnose::SIGNATURES;

use super::HEADER;
use crate::markdown::{code, table};

pub(super) fn page() -> String {
    let mut text = format!("{HEADER}# Error codes\n\n");
    text += "`umiak explain CODE` prints the same text. Codes are never reused.\n\n## umiak's own\n\n";
    text += &table(
        &["code", "case", "exit code", "what it means"],
        REGISTER.iter().map(|entry| {
            let exit = if entry.exit == 0 { "notice".to_owned() } else { entry.exit.to_string() };
            [code(entry.code.as_str()), entry.title.to_owned(), exit, entry.text.to_owned()]
        }),
    );
    text += SIGNATURES_HEAD;
    for signature in SIGNATURES {
        let _ = write!(
            text,
            "\n### {}: {}\n\n{}. {}\n\n- hint: {}\n- pattern: {}\n",
            signature.code,
            signature.title,
            signature.kind.title(),
            signature.text,
            signature.hint,
            code(signature.pattern)
        );
    }
    text
}

const SIGNATURES_HEAD: &str = "
## Signatures of the user's program

When a rank ends badly, the end of its log is compared with these patterns, line by line. A match adds its hint to
the failure and counts in the ranking of causes:

| kind | meaning |
|---|---|
| cause | this rank's own error |
| consequence | follows from an earlier error in the same rank |
| waiting | a peer did not arrive: something hangs, not necessarily this rank |
| victim | a peer failed first, or something outside stopped this rank |

`U1` the environment, `U2` the program, `U3` memory and devices, `U4` communication, `U9` ranks that ended because of
something outside them.
";

//! `docs/reference/exit-codes.md`: the table of the design, the codes of the register, and the effect of
//! `--exit-codes`, computed by the function that umiak uses.

use std::collections::BTreeMap;

use umiak_core::diag::codes::REGISTER;
use umiak_core::facts::{Finding, Outcome, Subject, Verdict, Weight};
use umiak_core::machine::exit_code::{CodeStyle, NodeCount, of};
use umiak_core::model::Exit;
use umiak_core::model::{ExitCodes, Generation};

use super::HEADER;
use crate::markdown::{codes, table};

pub(super) fn page() -> String {
    let mut by_exit: BTreeMap<u8, Vec<&str>> = BTreeMap::new();
    for entry in REGISTER.iter().filter(|entry| entry.exit != 0) {
        by_exit.entry(entry.exit).or_default().push(entry.code.as_str());
    }
    let mut text = format!("{HEADER}{CASES}");
    text += &table(
        &["exit code", "error codes"],
        by_exit.into_iter().map(|(exit, names)| [exit.to_string(), codes(names)]),
    );
    text += STYLES;
    text += &table(
        &[
            "case",
            "`umiak`",
            "`paddle`, current",
            "`paddle`, legacy",
            "`paddle`, legacy, etcd, `--np N`",
            "`paddle`, legacy, etcd, `--np MIN:MAX`",
            "`torch`",
        ],
        CASES_OF_STYLES.map(row),
    );
    text
}

const CASES: &str = "# Exit codes

| case | code |
|---|---|
| every rank exited with 0, or as many replicas as the document requires | 0 |
| `launch`, and `run` of one role: a rank failed | the causing rank's own code, 128 + n for a signal n |
| `run` of several roles failed | 1 |
| stopped by `umiak stop` | 3 |
| stopped by signal n (Ctrl-C is 2, so 130) | 128 + n |
| the run, or the causing replica, exceeded a time limit, or the job hung (`--hang-timeout`, `policy.hang`) | 124 |
| the rendezvous failed or a node was lost, and no rank is the cause | 123 |
| wrong usage, or a document with errors | 2 |
| umiak itself failed | 125 |
| a command that cannot be executed | 126 |
| a command that was not found | 127 |

The *causing* rank is the one that the report names first. If it has no failing code of its own (it did not respond and was
ended by umiak's signal, or it exited with 0 too early), the code is that of the first rank that failed because of it, else 1.

## Codes of the messages

A message such as `error[L0004]` ends the command with the code of its row. [Error codes](error-codes.md) explains each.

";

const STYLES: &str = "
## `--exit-codes`

Scripts may rely on the exit codes of the old launchers. In the first two rows rank 0 ended by the
launcher's SIGTERM. Over etcd, Paddle's legacy launcher has other codes after a failure: 101 asks a supervisor to start it
again. Under umiak the ranks restart in place first, as often as `--max_restart` allows.

";

/// A case and how the causing rank ended, or the signal that umiak received.
const CASES_OF_STYLES: [(&str, Case); 5] = [
    ("the causing rank exited with 7", Case::Failed(Exit::Code { code: 7 })),
    ("the causing rank was killed by SIGKILL", Case::Failed(Exit::Signal { signal: 9, core_dumped: false })),
    ("Ctrl-C", Case::Interrupted(2)),
    ("SIGTERM to umiak", Case::Interrupted(15)),
    ("success", Case::Succeeded),
];

enum Case {
    Failed(Exit),
    Interrupted(i32),
    Succeeded,
}

fn row((words, case): (&str, Case)) -> Vec<String> {
    let styles = [
        (ExitCodes::Umiak, Generation::Current, None),
        (ExitCodes::Paddle, Generation::Current, None),
        (ExitCodes::Paddle, Generation::Legacy, None),
        (ExitCodes::Paddle, Generation::Legacy, Some(NodeCount::Fixed)),
        (ExitCodes::Paddle, Generation::Legacy, Some(NodeCount::Range)),
        (ExitCodes::Torch, Generation::Current, None),
    ];
    let code = |(codes, generation, etcd)| {
        exit_code(CodeStyle { codes, generation, document: false, etcd }, &case).to_string()
    };
    [words.to_owned()].into_iter().chain(styles.map(code)).collect()
}

fn exit_code(style: CodeStyle, case: &Case) -> u8 {
    match case {
        Case::Succeeded => of(style, Outcome::Succeeded, None, None, &[]),
        Case::Interrupted(signal) => of(style, Outcome::Interrupted, Some(*signal), None, &[]),
        Case::Failed(exit) => {
            let cause = Finding {
                subject: Subject { replica: "trainer-1".to_owned(), rank: None, attempt: 1 },
                exit: exit.clone(),
                classed: None,
                ran_micros: 0,
                weight: Weight::Likely,
                timed_out: None,
                stopped_while_ending: false,
                clue: None,
                snapshot: None,
                evidence: None,
                usage: None,
            };
            let verdict = Verdict { causes: vec![cause], victims: Vec::new() };
            let ends = [Exit::Signal { signal: 15, core_dumped: false }, exit.clone()];
            of(style, Outcome::Failed, None, Some(&verdict), &ends)
        }
    }
}

//! `docs/reference/paddlerec.md`: every key of PaddleRec's two files.

use umiak_core::formats::paddlerec::keys;

use super::HEADER;
use super::job::tables;

pub(super) fn page() -> String {
    format!("{HEADER}# Files of PaddleRec\n{INTRODUCTION}{}", tables(keys::TABLES))
}

const INTRODUCTION: &str = "
What umiak does with each key of `config.yaml` and `backend.yaml`, in the three generations of PaddleRec. The [guide](../guide/paddlerec.md)
describes how to submit them; `umiak convert FILE` prints the [native document](job.md) that does the same.

- An empty key counts as omitted. Numbers may be in quotes. Of duplicate keys the last one counts, with a notice.
- `{workspace}` in other values is for the model, which replaces it.
";

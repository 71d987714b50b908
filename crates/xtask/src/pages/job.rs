//! `docs/reference/job.md`: every key of native documents, from the tables that parse them.

use std::fmt::Write as _;

use umiak_core::formats::native::keys::{KeyKind, TABLES, Table, UNLIMITED};

use super::HEADER;
use crate::markdown::{code, codes, table};

pub(super) fn page() -> String {
    format!("{HEADER}# Job documents\n{INTRODUCTION}{}{SETTINGS}", tables(TABLES))
}

/// A section for each table of keys.
pub(super) fn tables(tables: &[&Table]) -> String {
    let mut text = String::new();
    for part in tables {
        let _ = write!(text, "\n## {}\n\n{}\n\n", part.title, part.help);
        text += &table(
            &["key", "value", "default", "meaning", "example"],
            part.keys.iter().map(|key| {
                [code(key.name), value(&key.kind), key.default.to_owned(), key.help.to_owned(), code(key.example)]
            }),
        );
    }
    text
}

const INTRODUCTION: &str = "
A native document is YAML and starts with `umiak: v1`. It has `roles`, and is one job, or `steps`, and is a pipeline of
jobs ([guide](../guide/pipelines.md#native-documents)). `umiak lint FILE` reports all errors in a document with their
positions; `umiak schema job` prints its schema for editors (`schemas/job.v1.json`).

```yaml
umiak: v1
name: ctr
policy: {restarts: 2, backoff: 10s, timeout: 6h}
roles:
  pserver: {replicas: 2, command: \"python ps.py\", ports: {rpc: 1}, completes: false}
  trainer: {replicas: 4, command: [\"python\", \"train.py\"], env: {LR: \"0.1\"}, resources: {cpu: 2, memory: 4Gi, gpu: 1},
            completion: {min_failed: 1, min_succeeded: all}, start_after: pserver}
contracts: [paddle]
```

- An empty key counts as omitted. Unknown and duplicate keys are errors.
- Durations are `500ms`, `10s`, `5m` or `5min`, `6h`, `1d`, `1w` and sums of them (`1h30m`); a plain number is seconds.
- `\"{{ name }}\"` in any text is replaced by a parameter after parsing, so a value cannot change the structure.
  The quotes are required because YAML reads braces as a mapping. `{{ '{{' }}` stands for two braces, `{{ '{' }}` for one.
- Anchors, aliases and merge keys work. A document is limited to 32 MiB.
";

const SETTINGS: &str = "
## `umiak.toml`

Located beside the document, or at `$XDG_CONFIG_HOME/umiak/config.toml`. All keys are optional.

| table | keys | meaning |
|---|---|---|
| `[queue.NAME]` | `engine` | a queue that documents can use; `default` is built in |
| `[flavour.NAME]` | `cpu`, `mem`, `gpu` | resources by name; `flavour1`, `flavour2` and `flavour3` are built in |
| `[fs.NAME]` | `dir` | the directory of a file system on this host |
| `[engine.NAME]` | `kind`: an [engine](engines.md) | an engine under another name, with its own defaults |
| `[engine.slurm]`, and those of its kind | `direct`, `requeue`, `warning`, `umiak`, `connect`; any other key is a long option of `sbatch` | defaults for [Slurm](../guide/slurm.md); flags win |
| `[engine.mpi]`, and those of its kind | `launcher`, `hosts`, `arguments`, `umiak` | defaults for [MPI](../guide/mpi.md); flags win |
| `[engine.kubernetes]`, and those of its kind | `object` (`auto`, `volcano`, `jobset`, `jobs`), `kubeconfig`, `context`, `namespace`, `image`, `pull`, `pull_secrets`, `service_account`, `queue`, `priority_class`, `node_selector`, `tolerations`, `volumes`, `fs`, `gpu_resource`, `ship`; `patch` and `pod`: merge patches for the object and for pod templates | defaults for Kubernetes; flags win |
| `[hosts]` | `NAME = \"ADDRESS\"` | addresses by name |
";

fn value(kind: &KeyKind) -> String {
    match kind {
        KeyKind::Version => "`v1`".to_owned(),
        KeyKind::Text => "text".to_owned(),
        KeyKind::Number(least, most) => format!("number, {least} to {most}"),
        KeyKind::Bool => "`true` or `false`".to_owned(),
        KeyKind::Duration => "duration".to_owned(),
        KeyKind::Cpu => "number or text".to_owned(),
        KeyKind::Memory => "size".to_owned(),
        KeyKind::Choice(words) => codes(words.iter().copied()),
        KeyKind::Texts | KeyKind::Params => "mapping of names to texts".to_owned(),
        KeyKind::Command => "text, or list of texts".to_owned(),
        KeyKind::Contracts | KeyKind::Names => "name, or list of names".to_owned(),
        KeyKind::AllOr => "`all`, `never` or number".to_owned(),
        KeyKind::Restart => format!("number, or `{UNLIMITED}`"),
        KeyKind::Restarts(table) => format!("number, `{UNLIMITED}`, or {}", table.title),
        KeyKind::Named(_) => "mapping by name".to_owned(),
        KeyKind::Ports(_) => "mapping of names to numbers or ports".to_owned(),
        KeyKind::StartAfter(_) => "name, mapping, or list".to_owned(),
        KeyKind::Mapping(_) => "mapping".to_owned(),
        KeyKind::Maps(_) => "list of mappings".to_owned(),
        KeyKind::Lines => "list of texts".to_owned(),
        KeyKind::Counts => "mapping of names to numbers".to_owned(),
        KeyKind::Any => "any content".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_example_is_the_fixture() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents/good/design.yaml");
        assert!(INTRODUCTION.contains(&std::fs::read_to_string(path).unwrap()));
    }
}

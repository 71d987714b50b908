//! `docs/reference/paddleflow.md`: every key of a pipeline of PaddleFlow.

use umiak_core::formats::paddleflow::keys;

use super::HEADER;
use super::job::tables;

pub(super) fn page() -> String {
    format!("{HEADER}# Pipelines of PaddleFlow\n{INTRODUCTION}{}", tables(keys::TABLES))
}

const INTRODUCTION: &str = "
What umiak does with each key of a pipeline of PaddleFlow. One reader accepts the keys of the develop branch, of pull request #1164
(`distributed_job`) and of its early versions; `umiak lint` names the keys that some of them reject.

- Keys that PaddleFlow does not accept are errors, with the nearest name. An empty key counts as omitted.
- `{{name}}` and `{{owner.name}}` are templates; any other text in braces is left as it is. Without quotes, a value that begins with a
  template is not valid YAML.

| where | may use |
|---|---|
| `parameters` | system parameters; parameters of components in `deps`; `PF_PARENT.name` and `PF_PARENT.PF_LOOP_ARGUMENT` in a DAG |
| `env` | system parameters, own parameters |
| `command`, also of members | system parameters, own parameters, paths of own artifacts |
| `condition` | system parameters, own parameters, contents of own input artifacts |
| `loop_argument` | one own parameter, or the content of one own input artifact |
| `artifacts.input` | one output of a component in `deps`, or `PF_PARENT.name` in a DAG |
| `artifacts.output` of a DAG | one output of one of its components |

System parameters are `PF_RUN_ID`, `PF_STEP_NAME`, `PF_USER_NAME` and `PF_LOOP_ARGUMENT`.

A run has at most 250000 steps, DAGs and items of loops together. The loop or DAG that would give it more is refused, and the step
fails: use shorter loops, or several runs.
";

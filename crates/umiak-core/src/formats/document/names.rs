//! Names of roles that become names of variables.

use std::collections::HashMap;

use super::reader::{At, Reader};
use crate::diag::{Code, Diagnostic};
use crate::model::pai_name;

/// Reports roles whose internal names in OpenPAI are equal: they would have the same variables. `what` is `role`, as the
/// format calls it.
pub(crate) fn pai_names<'r>(reader: &mut Reader<'_>, what: &str, names: impl Iterator<Item = &'r At<String>>) {
    let mut seen: HashMap<String, &At<String>> = HashMap::new();
    for role in names {
        let name = pai_name(&role.value);
        if name.is_empty() {
            reader.error(Code::F0014, role.at, format!("the name of a {what} needs a letter or a digit"), "");
            continue;
        }
        let Some(first) = seen.get(&name) else {
            seen.insert(name, role);
            continue;
        };
        if first.value == role.value {
            continue;
        }
        let (source, (one, other)) = (reader.source, (&first.value, &role.value));
        reader.errors.add(|| {
            Diagnostic::error(Code::F0015, format!("{what}s `{one}` and `{other}` would use the same variables"))
                .label(source.label(role.at, format!("`PAI_HOST_IP_{name}_0` for `{other}`")))
                .label(source.label(first.at, format!("and for `{one}`")))
        });
    }
}

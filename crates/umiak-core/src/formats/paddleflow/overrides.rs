//! Parameters of the command line: `-p name=value` for every component that has it, `-p dag.step.name=value` for one.

use std::collections::HashMap;

use super::check::literal_of;
use super::graph::Graph;
use super::literal;
use super::raw::Home;
use super::template::templates;
use crate::diag::{Code, Diagnostic, nearest};
use crate::formats::document::reader::Reader;
use crate::model::Value;

/// Values by the path of a component and the name of its parameter.
pub(super) type Overrides = HashMap<String, HashMap<String, Value>>;

pub(super) fn overrides(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, given: &[(String, String)]) -> Overrides {
    let mut found = Overrides::new();
    // A value for one component wins over one for all.
    let (one, all): (Vec<_>, Vec<_>) = given.iter().partition(|(key, _)| key.contains('.'));
    for (key, text) in all.into_iter().chain(one) {
        if templates(text).next().is_some() {
            let message = format!("templates in the value of `-p {key}` are left as they are written");
            reader.notices.add(|| Diagnostic::notice(Code::F0054, message));
        }
        let targets: Vec<(String, usize)> = match key.rsplit_once('.') {
            Some((path, _)) => {
                let last = graph.walk(path).and_then(|path| path.last().copied());
                last.map(|at| (path.to_owned(), at)).into_iter().collect()
            }
            None => of_all(graph, key),
        };
        let name = key.rsplit_once('.').map_or(key.as_str(), |(_, name)| name);
        let has_it = |at: &usize| graph.bottom_at(*at).is_some_and(|bottom| graph.parameter(bottom, name).is_some());
        let targets: Vec<(String, usize)> = targets.into_iter().filter(|(_, at)| has_it(at)).collect();
        if targets.is_empty() {
            unknown(reader, graph, key);
        }
        for (path, at) in targets {
            let Some(parameter) = graph.bottom_at(at).and_then(|bottom| graph.parameter(bottom, name)) else {
                continue;
            };
            let own = graph.parameter(at, name).unwrap_or(parameter);
            let old = own.node.filter(|node| templates(node.text().unwrap_or_default()).next().is_none());
            match literal::given(text, parameter.kind.or(own.kind), old.and_then(literal_of).as_ref()) {
                Ok(value) => drop(found.entry(path).or_default().insert(name.to_owned(), value)),
                Err(expected) => {
                    let message = format!("`-p {key}` must be {expected}");
                    reader.error(Code::F0011, parameter.name.at, message, "declared here");
                    break;
                }
            }
        }
    }
    found
}

/// Components that are not in `components` and have this parameter.
fn of_all(graph: &Graph<'_, '_>, name: &str) -> Vec<(String, usize)> {
    let mut is_template = vec![false; graph.raw.all.len()];
    let mut found = Vec::new();
    for (at, component) in graph.raw.all.iter().enumerate() {
        is_template[at] = match component.home {
            Home::Templates => true,
            // A DAG comes before its components.
            Home::Dag(dag) => is_template[dag],
            Home::EntryPoints | Home::Post => false,
        };
        if !is_template[at] && graph.bottom_at(at).is_some_and(|bottom| graph.parameter(bottom, name).is_some()) {
            found.push((graph.path(at), at));
        }
    }
    found
}

fn unknown(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, key: &str) {
    let source = reader.source;
    reader.errors.add(|| {
        let names = || graph.raw.all.iter().flat_map(|one| one.parameters.iter().map(|one| one.name.value.as_str()));
        let near = match key.rsplit_once('.') {
            None => nearest(key, names()).map(str::to_owned),
            Some((path, name)) => {
                let last = graph.walk(path).and_then(|path| path.last().copied());
                match last.and_then(|at| graph.bottom(at)) {
                    Some(component) => nearest(name, component.parameters.iter().map(|one| one.name.value.as_str())),
                    None => None,
                }
                .map(|near| format!("{path}.{near}"))
            }
        };
        let error = Diagnostic::error(Code::F0033, format!("`{}` has no parameter `{key}`", source.name));
        match near {
            Some(near) => error.hint(format!("did you mean `-p {near}=…`?")),
            None if names().next().is_none() => error.hint("the pipeline has no parameters"),
            None => error,
        }
    });
}
